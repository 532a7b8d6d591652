// Package transport is the data plane: it carries packets between nodes, the most
// urgent first, from the sender's memory to the memory that the receiver names, without
// a copy in between. It does not know what a packet is for.
//
// # The life of a packet
//
//  1. Send (any thread) pushes a run of packets onto the heap of its connection, under
//     the lock, and wakes the send loop if that sleeps.
//  2. The send loop (sender.go, a thread of its own) chooses the writable connection
//     whose head is most urgent (conns.go), pops up to 256 KB of packets (queue.go) into
//     its batch (batch.go), encodes their headers and writes all of them with one system
//     call, straight from Outgoing.Data. Packets that the kernel does not take return to
//     the heap, where more urgent ones may overtake them; only a partly written packet
//     stays at the front. After the last byte of a run its Owner is released; see also
//     below, on breaks.
//  3. The receive loop (receiver.go, a thread of its own) learns of bytes from epoll,
//     reads a header (parser.go), asks Handler.Place where the payload goes, and reads
//     the payload there together with the next header. Then it calls Handler.Arrived.
//  4. A packet to this node itself passes through a heap of the same kind from Send to
//     the receive loop, which calls Handler.Local (local.go).
//
// # Who writes a connection
//
// Three threads may write: the send loop; the receive loop, after reading, while the send
// loop sleeps (flush.go); and a caller of Send, for a small packet with nothing queued
// before it (shortcut.go). conn.writing says that one of them owns the connection. It is
// set and cleared under Transport.mu; in between, its owner alone uses the socket and the
// packets in its batch, without the lock. Send may push to the queue in every state.
//
//	                       epoll or the shm peer reports room
//	         +------------------------------------------------------------+
//	         v                                                            |
//	+-----------------+  writer.take: the batch leaves the queue   +--------------+
//	| idle            | ------------------+                        | blocked      |
//	| queue: mu       |                   v                        | queue: mu    |
//	| writable        |          +-----------------+               | not writable |
//	+-----------------+          | writing         |               +--------------+
//	         ^                   | queue: mu       |                      ^
//	         |                   | socket, batch:  |                      |
//	         |                   | the owner       |                      |
//	         |                   +-----------------+                      |
//	         |   finish:             |    |    |     finish: the kernel    |
//	         +-- all was written ----+    |    +-- took less than given; --+
//	                                      |        the rest returns to the queue
//	                                      | finish: the write failed, or it
//	                                      v was our Goodbye
//	                             +------------------+  Transport.remove waits for
//	                             | ending           |  !writing, then endConn
//	                             | in mu.inbox of   |  closes the socket and drops
//	                             | the receive loop |  the queue
//	                             +------------------+
//
// A read error, or the end of the peer's stream, leads to Transport.remove from every
// state.
//
// # Breaks
//
// In a cluster that recovers, a connection over TCP outlives its socket (mend.go). Packets that
// were written are kept until the peer has acknowledged them (session.go), and only then is their
// Owner released. When the socket ends without a goodbye, the receive loop closes it, a goroutine
// makes another one, and what was lost returns to the heap. Nobody above notices.
//
// # The life of a connection
//
// Listen binds the port. After Start, goroutines of Go's net package accept (accept.go),
// dial (dial.go) and exchange handshakes (wire.Hello). Then the connection is in
// Transport.mu.conns, where Send finds it, and in the inbox of the receive loop, which
// takes over a copy of the socket and adds it to both epolls. The receive loop alone
// closes it (endConn), after the current write: a failed write shuts the socket down, and
// the receive loop then reads its end. Handler.Lost reports the end.
//
// After a peer has died, its successor may connect (replace.go): the old connection is
// dropped, and the new incarnation expected.
//
// In an orderly end (close.go, Goodbye) a Goodbye header is the last in each queue. The
// writer shuts down its direction after it, and each side closes when it has read the
// other side's end.
//
// # Threads and locks
//
//   - Transport.mu guards queues and conns. It is never held across a system call, a
//     Handler or a Releaser.
//   - Handler: called by the receive loop's thread alone. Releaser: called by the thread
//     that wrote the run, by the receive loop, or inside a Send that drops the run.
//   - System calls that move data never sleep and bypass Go's scheduler; long waits in
//     epoll go through it. A loop is woken by an eventfd, which is written only while the
//     loop sleeps.
//   - A panic in a loop or in the handler ends both loops; receiver.run then closes and
//     releases everything and calls Handler.Failed.
//
// # Probes
//
// Right after the start a node may fill its links for a moment (probe.go). Packets of the kind
// Probe are the transport's own: the receive loop reads their payloads into memory that nobody
// reads, and calls no Handler. From a node of this host, which uses no link, they are malformed.
//
// If a link is faster than two loops, all of this exists several times (lane.go).
//
// Nothing is allocated per packet or, once the pools have grown, per run.
package transport
