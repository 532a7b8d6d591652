// Package ps is dmlc ps-lite's applications: requests and responses between numbered
// apps, and pushes and pulls of values by key.
//
// An Office is a node's end: it hands each message to the Customer that it is for. A
// Customer sends requests, tracks the answers (Tracker, pure), and keeps the requests
// of others until its owner takes them (queue, pure). Its owner asks for the next
// Event, or for one request's end (Wait). On it are ps-lite's classes: SimpleApp,
// KVWorker, KVServer. Sum is the one owner written in Go: ps-lite's default handle,
// which adds what is pushed; it is called.
//
// Messages between nodes that are linked (line.go) take the data plane: an outbox and
// an inbox for each, packets as layout.go says. The rest are the control plane's.
// absence.go is for nodes that die and are replaced.
//
// The messages are ps-lite's. A node's own addition is the answer to a request that
// failed, with its text; a ps-lite program sees an answer without values.
package ps
