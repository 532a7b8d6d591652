// Package ps implements dmlc ps-lite's applications: requests and responses between
// numbered apps, and pushes and pulls of values by key.
//
// An Office dispatches a node's incoming messages to Customers. A Customer sends
// requests, tracks their answers (Tracker, pure), and queues the requests of other
// nodes (queue, pure) for its owner, which calls Next for the next Event or Wait for
// the end of one request. ps-lite's classes SimpleApp, KVWorker and KVServer are thin
// layers on a Customer. Sum is ps-lite's default handle, in Go: it adds pushed values
// and is called directly, without events.
//
// Messages between linked nodes (link.go) travel over the data plane, through an outbox
// and an inbox for each peer, in packets as layout.go defines. All other messages travel
// over the control plane. liveness.go handles nodes that die and are replaced.
//
// The messages are ps-lite's, with one addition: the answer to a failed request carries
// the text of the error. A ps-lite program sees an answer without values.
package ps
