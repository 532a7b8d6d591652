// The machine's limit for shared memory: a ring of 4 MB each way, copied into and out of. Who has nothing to do sleeps
// on a futex.
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "traffic.h"

enum {
    RING = 4 << 20,
    // A copy of this size is still in cache when the other side copies it out, and both sides copy at once.
    PIECE = 64 << 10,
    LINE = 64,
};

// Both counters only grow: 0 <= written - read <= RING.
struct ring {
    _Alignas(LINE) _Atomic uint64_t written;
    _Alignas(LINE) _Atomic uint64_t read;
    _Alignas(LINE) char bytes[RING];
};

struct sleeper {
    _Alignas(LINE) _Atomic uint32_t wakes;
    _Atomic uint32_t asleep;
};

struct shared {
    struct ring rings[2];        // to the server, to the client
    struct sleeper sleepers[2];  // the server, the client
    _Atomic int closed;
};

struct side {
    struct shared *shared;
    struct ring *in, *out;
    struct sleeper *self, *other;
    int full;  // a send found no room since the last wait
};

static void wake(struct sleeper *sleeper) {
    // Against the fence in ring_wait: either this sees it asleep, or it sees what was done before this.
    atomic_thread_fence(memory_order_seq_cst);
    if (!atomic_load_explicit(&sleeper->asleep, memory_order_relaxed)) return;
    atomic_fetch_add(&sleeper->wakes, 1);
    syscall(SYS_futex, &sleeper->wakes, FUTEX_WAKE, 1, 0, 0, 0);
}

static size_t least(size_t a, size_t b, size_t c) {
    size_t d = a < b ? a : b;
    return d < c ? d : c;
}

static size_t space(const struct ring *ring) {
    return RING - (ring->written - atomic_load_explicit(&ring->read, memory_order_acquire));
}

static size_t content(const struct ring *ring) {
    return atomic_load_explicit(&ring->written, memory_order_acquire) - ring->read;
}

static ssize_t ring_send(void *state, const void *bytes, size_t length) {
    struct side *side = state;
    struct ring *ring = side->out;
    size_t offset = ring->written % RING, there = space(ring);
    if (there == 0) {
        side->full = 1;
        return WOULD_BLOCK;
    }
    length = least(length < PIECE ? length : PIECE, there, RING - offset);
    memcpy(ring->bytes + offset, bytes, length);
    atomic_store_explicit(&ring->written, ring->written + length, memory_order_release);
    wake(side->other);
    return (ssize_t)length;
}

static ssize_t ring_recv(void *state, void *bytes, size_t length) {
    struct side *side = state;
    struct ring *ring = side->in;
    size_t offset = ring->read % RING, there = content(ring);
    if (there == 0) return atomic_load(&side->shared->closed) ? ENDED : WOULD_BLOCK;
    length = least(length < PIECE ? length : PIECE, there, RING - offset);
    memcpy(bytes, ring->bytes + offset, length);
    atomic_store_explicit(&ring->read, ring->read + length, memory_order_release);
    wake(side->other);
    return (ssize_t)length;
}

// Returns at once where the other side was faster. A vain return is harmless: the caller tries both ways again.
static void ring_wait(void *state) {
    struct side *side = state;
    uint32_t seen = atomic_load(&side->self->wakes);
    atomic_store_explicit(&side->self->asleep, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    // Room is no reason to stay awake for who had nothing to send.
    int room = side->full && space(side->out) > 0;
    if (!room && content(side->in) == 0 && !atomic_load(&side->shared->closed))
        syscall(SYS_futex, &side->self->wakes, FUTEX_WAIT, seen, 0, 0, 0);
    atomic_store_explicit(&side->self->asleep, 0, memory_order_relaxed);
    side->full = 0;
}

int main(int argc, char **argv) {
    struct options options = parse_options(argc, argv);
    struct shared *shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) fail("no shared memory for two rings of %d bytes", RING);
    pid_t server = fork_server(&options);
    int at = server != 0;
    struct side side = {.shared = shared,
                        .in = &shared->rings[at],
                        .out = &shared->rings[!at],
                        .self = &shared->sleepers[at],
                        .other = &shared->sleepers[!at]};
    struct channel channel = {&side, ring_send, ring_recv, ring_wait};
    if (server == 0) {
        serve(&options, &channel);
        return 0;
    }
    measure(&options, &channel, server);
    atomic_store(&shared->closed, 1);
    wake(side.other);
    wait_for_server(server);
    return 0;
}
