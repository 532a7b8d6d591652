// Package cluster manages membership: ids, groups, barriers, heartbeats, declared tensors,
// and the verdict that a node is dead.
//
// Scheduler is the cluster's state machine. It is pure: messages and ends of connections go
// in, each with its time; actions come out. Runner runs it with a van and a clock.
// Postoffice is the counterpart in every worker and server.
//
// The life of a cluster, as in ps-lite:
//
//  1. Each node binds its van and asks the scheduler to join (ADD_NODE). Once a second the
//     scheduler sends the waiting nodes the names of the missing ones.
//  2. When all nodes have asked, the scheduler sorts them by host and port, assigns ids, and
//     sends the list of all nodes to each.
//  3. The nodes make their data connections, then enter a barrier of all nodes.
//  4. Workers declare tensors; any node may enter barriers of its groups.
//  5. A second barrier of all nodes ends the cluster in order.
//
// In a cluster of fptps.ps the place of a node that dies between 3 and 5 is kept for a
// successor (recovery.go). Any other death before the end of 5 ends the cluster at once. When
// a process dies, its connection with the scheduler ends, and the Runner's owner calls Gone.
// The first such call is the verdict, and every node acts on the verdict alone. So the
// connections that close as its consequence never cause a verdict on the wrong node.
package cluster
