#define _GNU_SOURCE
#include "traffic.h"

#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { GRACE_S = 60 };

void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static double number(const char *name, const char *text, double least, double most) {
    char *end;
    double value = strtod(text, &end);
    if (*text == 0 || *end != 0 || !(value >= least && value <= most))
        fail("--%s %s: a number from %g to %g is needed", name, text, least, most);
    return value;
}

struct options parse_options(int argc, char **argv) {
    static const struct option known[] = {
        {"size", required_argument, 0, 'b'},    {"tensors", required_argument, 0, 't'},
        {"seconds", required_argument, 0, 'd'}, {"one-way", no_argument, 0, '1'},
        {"check", no_argument, 0, 'c'},         {0, 0, 0, 0}};
    struct options options = {.size = 4 << 20, .tensors = 16, .seconds = 3};
    int letter;
    while ((letter = getopt_long(argc, argv, "", known, 0)) != -1) {
        switch (letter) {
        case 'b': options.size = (size_t)number("size", optarg, 1, 1e12); break;
        case 't': options.tensors = (size_t)number("tensors", optarg, 1, 1e6); break;
        case 'd': options.seconds = number("seconds", optarg, 0.001, 3600); break;
        case '1': options.one_way = 1; break;
        case 'c': options.check = 1; break;
        default: exit(2);  // getopt has said why
        }
    }
    if (optind < argc) fail("%s: not an option", argv[optind]);
    return options;
}

static void too_late(int number) {
    (void)number;
    static const char text[] = "the other side has stopped answering\n";
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    _exit(written < 0 ? 2 : 1);
}

pid_t fork_server(const struct options *options) {
    signal(SIGPIPE, SIG_IGN);
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) fail("cannot start a second process");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) exit(1);
        return 0;
    }
    // Calibration takes less than the timed part.
    signal(SIGALRM, too_late);
    alarm((unsigned)(2 * options->seconds) + GRACE_S);
    return pid;
}

void wait_for_server(pid_t server) {
    int status;
    if (waitpid(server, &status, 0) != server || status != 0) fail("the server did not end in peace");
}

static int64_t nanoseconds(clockid_t clock) {
    struct timespec now;
    if (clock_gettime(clock, &now) != 0) fail("a clock cannot be read");
    return now.tv_sec * (int64_t)1000000000 + now.tv_nsec;
}

// Memory of its own for every byte, and not of this process' caches: written once, so that the kernel has put it there.
static char *region(size_t bytes) {
    char *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!memory) fail("no memory for %zu bytes", bytes);
    memset(memory, 1, bytes);
    return memory;
}

static uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15;
    return x ^ (x >> 29);
}

static void fill(char *bytes, size_t length, uint64_t seed) {
    for (size_t i = 0; i < length; i++) bytes[i] = (char)mixed(seed + i);
}

// Depends on every byte and on its place.
static uint64_t checksum(const char *bytes, size_t length) {
    uint64_t sum = length;
    for (size_t i = 0; i < length; i++) sum = mixed(sum + (unsigned char)bytes[i]);
    return sum;
}

// A stretch of memory through which a stream goes again and again.
struct flow {
    char *memory;
    size_t length;
    uint64_t position;  // in the stream
};

// Where the stream's next bytes are, and how many of at most `available` are one piece.
static char *next_piece(const struct flow *flow, uint64_t available, size_t *length) {
    size_t offset = flow->position % flow->length;
    *length = flow->length - offset;
    if (*length > CHUNK) *length = CHUNK;
    if (*length > available) *length = available;
    return flow->memory + offset;
}

// How many bytes went on, or ENDED.
static ssize_t send_some(const struct channel *channel, struct flow *flow, uint64_t end) {
    size_t length;
    char *bytes = next_piece(flow, end - flow->position, &length);
    if (length == 0) return 0;
    ssize_t done = channel->send(channel->state, bytes, length);
    if (done > 0) flow->position += (uint64_t)done;
    return done;
}

static ssize_t recv_some(const struct channel *channel, struct flow *flow, uint64_t end) {
    size_t length;
    char *bytes = next_piece(flow, end - flow->position, &length);
    if (length == 0) return 0;
    ssize_t done = channel->recv(channel->state, bytes, length);
    if (done > 0) flow->position += (uint64_t)done;
    return done;
}

// One way, the answer to a tensor is 8 bytes: its checksum where it is checked.
static void answer(const struct options *options, const struct flow *in, const struct flow *out, uint64_t tensor) {
    size_t slot = tensor % options->tensors;
    uint64_t sum = options->check ? checksum(in->memory + slot * options->size, options->size) : 0;
    memcpy(out->memory + slot * sizeof sum, &sum, sizeof sum);
}

void serve(const struct options *options, const struct channel *channel) {
    size_t total = options->size * options->tensors;
    struct flow in = {region(total), total, 0}, out = in;
    if (options->one_way) {
        out.length = options->tensors * sizeof(uint64_t);
        out.memory = region(out.length);
    }
    for (uint64_t answered = 0;;) {
        // The client starts no iteration before it has the whole answer of the last: nothing unsent is overwritten.
        ssize_t got = recv_some(channel, &in, in.position + total);
        if (got == ENDED) return;
        uint64_t end = in.position;
        if (options->one_way) {
            for (; answered < in.position / options->size; answered++) answer(options, &in, &out, answered);
            end = answered * sizeof(uint64_t);
        }
        ssize_t sent = send_some(channel, &out, end);
        if (sent == ENDED) return;
        if (got == WOULD_BLOCK && sent == WOULD_BLOCK) channel->wait(channel->state);
    }
}

struct client {
    const struct options *options;
    const struct channel *channel;
    struct flow in, out;
    uint64_t iteration;
};

// Sends all tensors and receives all answers; the nanoseconds from the start to each answer's end go to `ends`.
static void exchange(struct client *client, int64_t *ends) {
    const struct options *options = client->options;
    size_t answer_size = client->in.length / options->tensors, ended = 0;
    uint64_t first = client->in.position, all_sent = client->out.position + client->out.length;
    int64_t start = nanoseconds(CLOCK_MONOTONIC);
    while (ended < options->tensors) {
        ssize_t sent = send_some(client->channel, &client->out, all_sent);
        ssize_t got = recv_some(client->channel, &client->in, first + client->in.length);
        if (sent == ENDED || got == ENDED) fail("the server has ended");
        if (got > 0 && (client->in.position - first) / answer_size > ended) {
            int64_t now = nanoseconds(CLOCK_MONOTONIC) - start;
            while (ended < (client->in.position - first) / answer_size) ends[ended++] = now;
        } else if (sent == WOULD_BLOCK && got == WOULD_BLOCK) {
            client->channel->wait(client->channel->state);
        }
    }
}

static void check_answers(const struct client *client) {
    size_t size = client->options->size;
    for (size_t i = 0; i < client->options->tensors; i++) {
        uint64_t sent = checksum(client->out.memory + i * size, size), got;
        if (client->options->one_way)
            memcpy(&got, client->in.memory + i * sizeof got, sizeof got);
        else
            got = checksum(client->in.memory + i * size, size);
        if (sent != got) fail("tensor %zu of iteration %lu came back wrong", i, (unsigned long)client->iteration);
    }
}

// Nanoseconds that it took.
static int64_t iterate(struct client *client, size_t count, int64_t *ends) {
    int64_t start = nanoseconds(CLOCK_MONOTONIC);
    for (size_t i = 0; i < count; i++, client->iteration++) {
        if (client->options->check) {
            fill(client->out.memory, client->out.length, client->iteration << 40);
            memset(client->in.memory, 0, client->in.length);
        }
        exchange(client, ends + i * client->options->tensors);
        if (client->options->check) check_answers(client);
    }
    return nanoseconds(CLOCK_MONOTONIC) - start;
}

// Grows the number of iterations until it takes a tenth of the time; so it also warms up.
static size_t iterations_for(struct client *client) {
    for (size_t count = 1;; count *= 2) {
        int64_t *ends = malloc(count * client->options->tensors * sizeof *ends);
        if (!ends) fail("no memory for times");
        double took = (double)iterate(client, count, ends) / 1e9;
        free(ends);
        if (took >= client->options->seconds / 10) {
            size_t enough = (size_t)((double)count * client->options->seconds / took);
            return enough > 0 ? enough : 1;
        }
    }
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

// The smallest of the sorted values that `share` of all do not exceed, in microseconds.
static double percentile(const int64_t *sorted, size_t count, double share) {
    size_t rank = (size_t)(share * (double)count);
    if ((double)rank < share * (double)count) rank++;
    return (double)sorted[rank > 0 ? rank - 1 : 0] / 1e3;
}

void measure(const struct options *options, const struct channel *channel, pid_t server) {
    size_t total = options->size * options->tensors;
    size_t back = options->one_way ? options->tensors * sizeof(uint64_t) : total;
    struct client client = {options, channel, {region(back), back, 0}, {region(total), total, 0}, 0};
    clockid_t clock;
    if (clock_getcpuclockid(server, &clock) != 0) fail("the server has ended");
    size_t iterations = iterations_for(&client), count = iterations * options->tensors;
    int64_t *ends = malloc(count * sizeof *ends);
    if (!ends) fail("no memory for times");
    int64_t cpu = -nanoseconds(clock) - nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
    int64_t took = iterate(&client, iterations, ends);
    cpu += nanoseconds(clock) + nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
    qsort(ends, count, sizeof *ends, by_value);
    double bytes = (double)total * (double)iterations * (options->one_way ? 1 : 2);
    printf("{\"goodput_mb_s_per_worker\": %.3f, \"cpu_s_per_gb\": %.6f, \"p50_us\": %.3f, \"p99_us\": %.3f, "
           "\"iterations\": %zu, \"checked\": %s}\n",
           bytes / 1e6 / ((double)took / 1e9), (double)cpu / bytes, percentile(ends, count, 0.5),
           percentile(ends, count, 0.99), iterations, options->check ? "true" : "false");
}
