// Package ps is dmlc ps-lite's applications over the control plane's messages:
// requests and responses between numbered apps, and pushes and pulls of values by key.
//
// An Office is a node's end: it hands each message to the Customer that it is for. A
// Customer sends requests, tracks the answers (Tracker, pure), and keeps the requests
// of others until its owner takes them (queue, pure). Its owner asks for the next
// Event; nothing here calls back. Sum is the one owner written in Go: ps-lite's default
// handle, which adds what is pushed.
//
// The messages are ps-lite's. A node's own addition is the answer to a request that
// failed, with its text; a ps-lite program sees an answer without values.
package ps
