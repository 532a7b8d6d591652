// Package transport is the data plane: it carries packets between nodes, the most
// urgent first, from the sender's memory to the place that the receiver names, with
// no copy on the way. It does not know why a packet is sent.
//
// # The life of a packet
//
//  1. Send (any thread) puts a run of packets on the heap of its connection, under
//     the lock, and wakes the send loop if that sleeps.
//  2. The send loop (sender.go, a thread of its own) chooses the writable
//     connection whose head is most urgent (table.go), pops up to 256 KB of packets
//     (queue.go) into its batch (batch.go), encodes their headers and writes all
//     with one system call, straight from Outgoing.Data. What the kernel does not
//     take goes back to the heap, where something more urgent may now be before
//     it; only a packet that was written in part stays at the front. After a run's
//     last byte its Owner is released.
//  3. The receive loop (receiver.go, a thread of its own) is told by epoll, reads
//     a header (parser.go), asks Handler.Place where the payload goes, and reads it
//     there together with the next header. When it is whole, Handler.Arrived.
//  4. A packet to this node itself takes a heap of the same kind from Send to the
//     receive loop and Handler.Local (local.go).
//
// # The life of a connection
//
// Listen binds the port. After Start, goroutines of Go's net package accept
// (accept.go) and dial (dial.go) and shake hands (wire.Hello). Then the connection
// is in the table, so that Send finds it, and in the inbox of the receive loop,
// which takes over a copy of the socket and shows it to both epolls. Only the
// receive loop closes it (receiver.end), after the send loop's current write: a
// failed write is a shutdown of the socket that the receive loop then meets. The
// end is told by Handler.Lost.
//
// A peer that has died may be replaced by another (replace.go): the connection with the
// old one is dropped, and the new one expected.
//
// In good order (close.go, Goodbye): a Goodbye header is the last in the queue,
// the send loop shuts its direction down after it, and each side closes when it has
// read the other's end.
//
// # Threads and locks
//
//   - Transport.mu guards queues and table. It is never held across a system call,
//     a Handler or a Releaser. conn.writing, set under it, lends a connection's
//     socket and the packets in the batch to the send loop meanwhile.
//   - Handler: the receive loop's thread alone. Releaser: the send loop, the receive
//     loop, or the caller of a Send that drops.
//   - System calls that move data never sleep and go past Go's scheduler; the
//     waits in epoll go through it. A loop is woken by an eventfd, written only
//     while the loop sleeps.
//   - Any panic in a loop or the handler ends both loops; receiver.run then closes
//     and releases everything and calls Handler.Failed.
//
// Where a link is faster than two loops, all this is there several times (lane.go).
//
// Nothing is allocated per packet or, once the pools have grown, per run.
package transport
