package cluster

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"fptps/gocore/plan"
	"fptps/gocore/trace"
	"fptps/gocore/van"
	"fptps/gocore/wire"
)

// Protocol is the version of fptps's additions to ps-lite's messages.
const Protocol = 1

// Role is the role of a node; the numbers are ps-lite's.
type Role int

// The roles.
const (
	RoleServer Role = iota
	RoleWorker
	RoleScheduler
)

// String is the role's name, as in DMLC_ROLE.
func (r Role) String() string {
	switch r {
	case RoleServer:
		return "server"
	case RoleWorker:
		return "worker"
	case RoleScheduler:
		return "scheduler"
	}
	return fmt.Sprintf("role %d", int(r))
}

// Groups of nodes for Barrier; they add up.
const (
	SchedulerGroup = wire.SchedulerGroup
	ServerGroup    = wire.ServerGroup
	WorkerGroup    = wire.WorkerGroup
	AllGroup       = wire.AllGroup
)

// Name is a node's name in texts: "worker 3".
func Name(id int) string { return wire.NodeName(id) }

// LeftWhy is the reason of a worker that leaves a training which goes on without it, as KVWorker.leave() gives it.
const LeftWhy = "it left in good order"

// Loss says in the log that the cluster goes on without a node.
func Loss(id int, why string) string {
	how := " was lost"
	if why == LeftWhy {
		how = " has left"
	}
	return Name(id) + how + "; the others go on without it"
}

// inGroup reports whether a node of role r belongs to group.
func inGroup(r Role, group int) bool {
	bit := map[Role]int{RoleServer: ServerGroup, RoleWorker: WorkerGroup, RoleScheduler: SchedulerGroup}[r]
	return group&bit != 0
}

// Member is one node of a cluster.
type Member struct {
	ID          int // 0 until the scheduler has assigned one
	Role        Role
	Host        string // of both planes
	Port        int    // control plane
	DataPort    int    // data plane
	Incarnation uint64 // differs in every process
	Share       int    // of the summing; Unset until the scheduler divides it
	Place       uint32 // the requested rank + 1; 0: any
	LinkRate    uint64 // of its link, each direction, bit/s; 0: not known
	Protocol    uint32 // version of fptps's protocol; 0: a ps-lite program, which gets ps-lite's messages alone
	Customer    int    // number of the customer that asks to join, within its process, from 0
	Customers   int    // customers of a member's process; each has a place among DMLC_NUM_WORKER
	Classic     bool   // it uses ps-lite's classes alone: a successor can take its place
	Vacant      bool   // it is dead, and its place is kept for a successor
	Recovered   bool   // it is the successor of a dead node
	Newcomer    bool   // it came when the others had begun, and takes no part yet
}

// Unset is the share of the summing of a node that leaves it to the scheduler.
const Unset = -1

// PSLite reports whether the node is a program of dmlc ps-lite.
func (m Member) PSLite() bool { return m.Protocol == 0 }

// Rank is the node's number among those of its role, from 0.
func (m Member) Rank() int {
	switch m.Role {
	case RoleServer:
		return (m.ID - wire.ServerID(0)) / 2
	case RoleWorker:
		return (m.ID - wire.WorkerID(0)) / 2
	}
	return 0
}

// View is a cluster as a node knows it. It does not change.
type View struct {
	Self        int
	Members     []Member // all nodes, the scheduler last
	Token       [16]byte // names this run of the cluster
	Epoch       int      // workers that had died or were admitted before this node joined
	FastestLink uint64   // of the nodes with which the cluster began, bit/s; 0: not known
	Replans     bool     // the plan may change: every node may have to sum
	Recovers    bool     // the cluster goes on after the death of a node where it can: every node may have to sum
	Replicates  bool     // each aggregator has a backup

	SchedulerTimeout time.Duration // how long a node waits for another scheduler when it needs one; 0: the death of the scheduler ends the cluster
}

// Me is this node.
func (v View) Me() Member { return v.Member(v.Self) }

// Member is the node with an id; a zero Member if there is none.
func (v View) Member(id int) Member {
	for _, m := range v.Members {
		if m.ID == id {
			return m
		}
	}
	return Member{}
}

// Rank is this node's rank.
func (v View) Rank() int { return v.Me().Rank() }

// ByRole lists the nodes of one role by rank, without newcomers.
func (v View) ByRole(r Role) []Member {
	var all []Member
	for _, m := range v.Members {
		if m.Role == r && !m.Newcomer {
			all = append(all, m)
		}
	}
	return all
}

// Shares lists the members' shares of the summing by id.
func (v View) Shares() []plan.Share {
	var shares []plan.Share
	for _, m := range v.Members {
		if m.Role != RoleScheduler && m.Share != Unset {
			shares = append(shares, plan.Share{Node: uint32(m.ID), Share: uint32(m.Share)})
		}
	}
	slices.SortFunc(shares, func(a, b plan.Share) int { return int(a.Node) - int(b.Node) })
	return shares
}

// PSLite reports whether a program of dmlc ps-lite is among the nodes. Under a scheduler of
// ps-lite every node looks like one.
func (v View) PSLite() bool { return slices.ContainsFunc(v.Members, Member.PSLite) }

// Classic reports whether all nodes use ps-lite's classes alone. No tensors are summed then, and the cluster
// goes on after a death, until a successor joins.
func (v View) Classic() bool {
	return !slices.ContainsFunc(v.Members, func(m Member) bool {
		return m.Role != RoleScheduler && !m.Classic && !m.PSLite()
	})
}

// With returns the view with one member changed.
func (v View) With(m Member) View {
	v.Members = slices.Clone(v.Members)
	for i := range v.Members {
		if v.Members[i].ID == m.ID {
			v.Members[i] = m
		}
	}
	return v
}

// Plus returns the view with another member, which comes last of its role.
func (v View) Plus(m Member) View {
	at := slices.IndexFunc(v.Members, func(o Member) bool { return o.Role > m.Role })
	v.Members = slices.Insert(slices.Clone(v.Members), at, m)
	return v
}

// Without returns the view without a member.
func (v View) Without(id int) View {
	v.Members = slices.DeleteFunc(slices.Clone(v.Members), func(m Member) bool { return m.ID == id })
	return v
}

// Workers lists the workers by rank.
func (v View) Workers() []Member { return v.ByRole(RoleWorker) }

// Servers lists the servers by rank.
func (v View) Servers() []Member { return v.ByRole(RoleServer) }

// Config holds the settings of a node, the scheduler included.
type Config struct {
	Role              Role
	SchedulerHost     string
	SchedulerPort     int
	Host              string // address of this node for the others; "": that of its route to the scheduler
	Port              int    // of this node's van, 0: any; the scheduler's is SchedulerPort
	DataPort          int
	Incarnation       uint64
	Share             int           // of the summing; Unset: the scheduler decides
	Place             uint32        // the requested rank + 1; 0: any. If two nodes request the same, their addresses decide
	LinkRate          uint64        // of this node's link, each direction, bit/s; 0: not known
	Secret            string        // FPTPS_TOKEN: nodes with another one are refused
	Workers, Servers  int           // sizes of the cluster; with 0 workers a node accepts the scheduler's numbers
	HeartbeatInterval time.Duration // 0: no heartbeats
	HeartbeatTimeout  time.Duration // silence after which a node is dead; 0: never
	Recovers          bool          // of the scheduler: the cluster goes on after the death of a node where it can
	Replicas          int           // of the scheduler, with Recovers: of what each aggregator stores; 0 or 1
	MinWorkers        int           // of the scheduler: with fewer workers it does not
	MaxWorkers        int           // of the scheduler: more workers at a time are refused; 0: as many as at the start
	SchedulerTimeout  time.Duration // of the scheduler: how long nodes wait for another one after its death; 0: not at all
	RecoveryTimeout   time.Duration // of the scheduler: how long a dead node's place is kept for a successor; 0: not at all
	PSLite            bool          // it uses ps-lite's classes alone, and may join a scheduler of ps-lite
	Resend            bool          // programs of ps-lite resend unacknowledged messages: PS_RESEND
	Attends           bool          // the scheduler's own program enters the barriers of its group; else it counts as present
	Customer          int           // number of the customer of this process that asks to join
	Customers         <-chan int    // further customers, which ask while the node joins; nil: none
	Trace             *trace.Tracer // has this node's clock, and learns its offset to the scheduler's; nil: neither
	Log               *slog.Logger  // nil: slog.Default
}

func (c Config) log() *slog.Logger {
	if c.Log == nil {
		return slog.Default()
	}
	return c.Log
}

// beats reports whether a node without heartbeats is considered dead.
func (c Config) beats() bool { return c.HeartbeatInterval > 0 && c.HeartbeatTimeout > 0 }

// Burial is the death of a node without which the cluster goes on.
type Burial struct {
	ID    int
	Why   string
	Epoch int // that begins with it; 0: none does
	Heir  int // its backup, which has all that it has stored; 0: there is none
}

// Events holds the callbacks of a Postoffice or a Runner, which calls them on its own
// goroutine: they must not block, and not call Close. Each may be nil.
type Events struct {
	// Lost reports the verdict that a node is dead, which ends the cluster; at most once.
	Lost func(id int, why string)
	// Asked reports that a node has asked to join, and for which nodes the scheduler still waits.
	Asked func(m Member, missing []string)
	// Vacated reports that a node is dead, and that its place is kept for a successor.
	Vacated func(id int, why string)
	// Buried reports that a node is dead, and that the cluster goes on without it. After the death of a worker, or in a cluster with replicas, of
	// any node, with which an epoch begins, Survived is called; Settled has the rounds that stand (see kv.Worker.Settle).
	Buried  func(b Burial)
	Settled func(complete wire.Rounds)
	// Recovered reports that a successor has taken such a place. It precedes all messages of the successor.
	Recovered func(m Member)
	// Came reports that a newcomer has come, with which this node makes connections; Linked reports them. Admitted: it is a member now.
	// If it is a worker, an epoch begins, as for Buried, when all programs have come to the place where newcomers are admitted for the points-th time.
	Came     func(m Member)
	Admitted func(m Member, epoch int, points uint64)
	// Gather returns how often this node's program has passed the place where newcomers may be admitted: it waits there the next time, until
	// Meet says when they are admitted; 0: not now.
	Gather func() uint64
	Meet   func(points uint64)
	// Resumed reports that another scheduler goes on with the cluster, or that the one before was taken for dead.
	Resumed func(scheduler Member)
	// Waiting names the nodes for which a barrier or a declaration has waited 5 s, and again
	// every 5 s; event is "barrier" or "key 3". No missing nodes: the wait has ended.
	Waiting func(event string, missing []string)
	// Doing reports a node's question what this one does, or an answer to a question of this one.
	Doing func(d Doing)
	// Closed reports that a worker waits in the last barrier, and its last rounds.
	Closed func(id int, last wire.Rounds)
	// Promise returns what kv.Worker.Promise does: the scheduler prepares a new plan. Commit puts it into force, Abort withdraws it.
	Promise func() wire.Rounds
	Commit  func(number uint32, p *plan.Plan, first wire.Rounds)
	Abort   func()
	// Progress returns what this node has counted so far; nil: it reports nothing.
	Progress func() Progress
	// Message delivers a message of a node, this one included, to an application of this one.
	Message func(from Member, e *van.Envelope)
	// Failed reports that the control plane of this node broke; at most once, as the last call.
	Failed func(err error)
}

func (e Events) lost(id int, why string) {
	if e.Lost != nil {
		e.Lost(id, why)
	}
}

func (e Events) asked(m Member, missing []string) {
	if e.Asked != nil {
		e.Asked(m, missing)
	}
}

func (e Events) vacated(id int, why string) {
	if e.Vacated != nil {
		e.Vacated(id, why)
	}
}

func (e Events) buried(b Burial) {
	if e.Buried != nil {
		e.Buried(b)
	}
}

func (e Events) settled(complete wire.Rounds) {
	if e.Settled != nil {
		e.Settled(complete)
	}
}

func (e Events) recovered(m Member) {
	if e.Recovered != nil {
		e.Recovered(m)
	}
}

func (e Events) resumed(scheduler Member) {
	if e.Resumed != nil {
		e.Resumed(scheduler)
	}
}

func (e Events) came(m Member) {
	if e.Came != nil {
		e.Came(m)
	}
}

func (e Events) admitted(m Member, epoch int, points uint64) {
	if e.Admitted != nil {
		e.Admitted(m, epoch, points)
	}
}

func (e Events) gather() uint64 {
	if e.Gather == nil {
		return 0
	}
	return e.Gather()
}

func (e Events) meet(points uint64) {
	if e.Meet != nil {
		e.Meet(points)
	}
}

func (e Events) waiting(event string, missing []string) {
	if e.Waiting != nil {
		e.Waiting(event, missing)
	}
}

func (e Events) doing(d Doing) {
	if e.Doing != nil {
		e.Doing(d)
	}
}

func (e Events) closed(id int, last wire.Rounds) {
	if e.Closed != nil {
		e.Closed(id, last)
	}
}

func (e Events) promise() wire.Rounds {
	if e.Promise == nil {
		return wire.Rounds{}
	}
	return e.Promise()
}

func (e Events) commit(number uint32, p *plan.Plan, first wire.Rounds) {
	if e.Commit != nil {
		e.Commit(number, p, first)
	}
}

func (e Events) abort() {
	if e.Abort != nil {
		e.Abort()
	}
}

func (e Events) message(from Member, m *van.Envelope) {
	if e.Message != nil {
		e.Message(from, m)
	}
}

func (e Events) failed(err error) {
	if e.Failed != nil {
		e.Failed(err)
	}
}
