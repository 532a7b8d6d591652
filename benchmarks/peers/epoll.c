// The machine's limit for TCP on loopback: one thread a side, epoll, no framing, no summing.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "traffic.h"

struct tcp {
    int socket;
    int epoll;
};

static int new_socket(void) {
    int made = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    if (made < 0) fail("no socket: %s", strerror(errno));
    // BBR, the default of some machines, halves loopback. Where cubic is not allowed the default stays.
    (void)!setsockopt(made, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
    if (setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) fail("TCP_NODELAY: %s", strerror(errno));
    return made;
}

static ssize_t outcome(ssize_t done) {
    if (done >= 0) return done;
    return errno == EAGAIN || errno == EINTR ? WOULD_BLOCK : ENDED;
}

static ssize_t tcp_send(void *state, const void *bytes, size_t length) {
    struct tcp *tcp = state;
    return outcome(send(tcp->socket, bytes, length, MSG_DONTWAIT));
}

static ssize_t tcp_recv(void *state, void *bytes, size_t length) {
    struct tcp *tcp = state;
    ssize_t done = recv(tcp->socket, bytes, length, MSG_DONTWAIT);
    return done == 0 ? ENDED : outcome(done);
}

static void tcp_wait(void *state) {
    struct tcp *tcp = state;
    struct epoll_event event;
    if (epoll_wait(tcp->epoll, &event, 1, -1) < 0 && errno != EINTR) fail("epoll_wait: %s", strerror(errno));
}

static struct channel tcp_channel(struct tcp *tcp) {
    // Edge-triggered: both ways are always tried until they would block, so nothing has to be changed later.
    struct epoll_event both = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
    tcp->epoll = epoll_create1(0);
    if (tcp->epoll < 0 || epoll_ctl(tcp->epoll, EPOLL_CTL_ADD, tcp->socket, &both) != 0)
        fail("epoll: %s", strerror(errno));
    return (struct channel){tcp, tcp_send, tcp_recv, tcp_wait};
}

int main(int argc, char **argv) {
    struct options options = parse_options(argc, argv);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = new_socket();
    if (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) != 0)
        fail("cannot listen on loopback: %s", strerror(errno));
    pid_t server = fork_server(&options);
    struct tcp tcp;
    if (server == 0) {
        tcp.socket = accept(listener, 0, 0);
        if (tcp.socket < 0) fail("accept: %s", strerror(errno));
        struct channel channel = tcp_channel(&tcp);
        serve(&options, &channel);
        return 0;
    }
    close(listener);
    tcp.socket = new_socket();
    if (connect(tcp.socket, (struct sockaddr *)&address, length) != 0) fail("connect: %s", strerror(errno));
    struct channel channel = tcp_channel(&tcp);
    measure(&options, &channel, server);
    close(tcp.socket);
    wait_for_server(server);
    return 0;
}
