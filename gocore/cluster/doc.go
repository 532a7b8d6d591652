// Package cluster is who is there and who is not: ids, groups, barriers,
// heartbeats, declared tensors, and the verdict that a node is dead.
//
// Scheduler is the cluster's state machine. It is pure: messages and news of ended
// connections go in with the time they came at, actions come out. Runner gives it a
// van and a clock. Postoffice is the other end: one in every worker and server.
//
// The life of a cluster, as ps-lite has it:
//
//  1. Each node binds its van and asks the scheduler to let it in (ADD_NODE). The
//     scheduler tells those present, once a second, who is missing.
//  2. When all are there it sorts them by host and port, gives ids, and sends all
//     of them the list of all.
//  3. The nodes make their data connections and meet in a barrier of everyone.
//  4. Workers declare tensors; anyone may ask for a barrier of its group.
//  5. A second barrier of everyone ends the cluster in good order.
//
// Where all nodes take part as ps-lite programs do, the place of one that dies between
// 3 and 5 is kept for another (recovery.go). Every other
// death before the end of 5 ends the cluster at once. A dead process's
// connection to the scheduler ends, for which the Runner's owner calls Gone; the
// first such news is the verdict, and everyone acts on it alone. The connections
// that close as its consequence therefore never name the wrong node.
package cluster
