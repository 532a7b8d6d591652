// The traffic of one worker and one server, over any channel: what epoll.c and ring.c measure the machine with.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// Bytes of one call to send or recv, at most.
enum { CHUNK = 256 * 1024 };

enum { WOULD_BLOCK = 0, ENDED = -1 };

// A stream of bytes both ways between two processes. None of its functions but wait blocks.
struct channel {
    void *state;
    // How many bytes were taken; WOULD_BLOCK; ENDED when the other side is gone.
    ssize_t (*send)(void *state, const void *bytes, size_t length);
    ssize_t (*recv)(void *state, void *bytes, size_t length);
    // Returns once send or recv, which both would have blocked, may do something.
    void (*wait)(void *state);
};

struct options {
    size_t size;     // bytes of a tensor
    size_t tensors;
    double seconds;  // how long the timed part takes, about
    int one_way;     // the server answers each tensor with 8 bytes instead of as many as it got
    int check;       // other bytes in each iteration, compared at their end
};

// Ends the process with one sentence on stderr.
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);

// Reads the command line; ends the process where it makes no sense.
struct options parse_options(int argc, char **argv);

// Starts the other process, which ends with this one. Returns as fork does.
pid_t fork_server(const struct options *options);

// Answers until the channel has ended.
void serve(const struct options *options, const struct channel *channel);

// Sends, receives and measures, as the client of the process `server`; prints the result as a line of JSON.
void measure(const struct options *options, const struct channel *channel, pid_t server);

// Waits for the server, which has to end in peace once the channel has ended.
void wait_for_server(pid_t server);
