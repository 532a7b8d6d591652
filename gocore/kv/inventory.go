package kv

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"fptps/gocore/fault"
	"fptps/gocore/plan"
	"fptps/gocore/wire"
)

// Workers that come later (newcomers) are admitted at a point of the program that all workers reach with the same rounds behind them, and none
// under way: each waits there (Arrive) until the epoch with the newcomers begins (Join, then Settle). A newcomer then asks another worker for its
// inventory, and for the state of the program (newcomer.go). A worker keeps both until a round of that epoch has ended: by then the newcomers
// have contributed to it, so that they have had them.

// inventory is what a worker knows of the tensors between two rounds, and what all know alike.
type inventory struct {
	Plan    uint32
	Shares  []plan.Share
	Owed    []int64 // of the plan's tally
	Deaths  []buriedNode
	Tensors []tensorRecord // by id
}

// buriedNode is a death.
type buriedNode struct {
	Node  uint32
	Heirs []uint32
}

// tensorRecord is a tensor's part of an inventory.
type tensorRecord struct {
	Key         uint64
	Name, Shape string // see wire.Tensor
	DType       wire.DType
	Policy      wire.Policy
	Size        uint64
	Row         int  // bytes of a row of a table; 0: it is no table
	Updated     bool // the aggregators apply an optimiser to it
	Next        uint64
	Plan        uint16
	Runs        []plan.Run
	Changes     []planChange
	Lost        string
}

// planChange is a change.
type planChange struct {
	Number uint32
	First  uint64
	Runs   []plan.Run
}

// parcel is what a worker keeps for newcomers.
type parcel struct {
	epoch uint16 // of their admission
	data  []byte // 16 bytes with the sizes of what follows: the inventory, as JSON, and the program's state; nil before the epoch begins
	state []byte
	early []earlyAsk // that have come before the epoch has begun here
}

// earlyAsk is a newcomer's question that has to wait.
type earlyAsk struct {
	node   uint32
	header wire.Header
}

// Arrive holds back further rounds until newcomers are admitted (Settle after Join), or Depart. state is what the program gives to newcomers;
// the worker keeps it. The result is how many rounds of each tensor have ended: the same on all workers. A round that is under way is an error.
func (w *Worker) Arrive(state []byte) (complete wire.Rounds, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.failed != nil {
		return complete, w.mu.failed
	}
	for _, t := range w.mu.byKey {
		if t.active != nil || t.readers > 0 || len(t.queue) > 0 {
			return complete, fault.New(fault.Busy, "admit(): %s has an operation under way: wait for its ticket first", t.name).With(t.about())
		}
	}
	w.mu.meeting, w.mu.parcel = true, &parcel{state: state}
	complete, _ = w.complete()
	return complete, nil
}

// Depart ends Arrive without newcomers.
func (w *Worker) Depart() {
	w.step(func() (e effects) {
		w.mu.meeting, w.mu.parcel = false, nil
		for _, id := range slices.Sorted(maps.Keys(w.mu.byID)) {
			e.sends = append(e.sends, w.advance(w.mu.byID[id])...)
		}
		return e
	})
}

// Join adds another node, which sums from now on where a plan says so; a worker, of that rank (else -1), takes part in the rounds that
// begin after the next Settle. Every worker calls it for the same nodes in the same order, and in the same place among the deaths.
func (w *Worker) Join(node uint32, rank int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Aggregators = append(slices.Clone(w.Aggregators), node)
	if rank >= 0 {
		w.mu.roster.join(rank)
		w.mu.joined = true
	}
	if rank == w.Rank {
		w.mu.standing = admitted
	}
}

// Meeting reports whether the worker waits since Arrive, or has not been admitted.
func (w *Worker) Meeting() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.meeting || w.mu.standing == newcomer
}

// Admission returns how often newcomers, or this one, were admitted so far, and the workers after the last time: the same on all of them. It
// returns 0 and no workers before.
func (w *Worker) Admission() (times int, workers []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if times = len(w.mu.admissions); times > 0 {
		workers = w.mu.roster.at(int(w.mu.admissions[times-1]))
	}
	return times, workers
}

// welcome ends the meeting, now that the epoch with the newcomers begins. The lock is held.
func (w *Worker) welcome() (e effects) {
	w.mu.joined, w.mu.meeting = false, false
	w.mu.admissions = append(w.mu.admissions, w.mu.epoch)
	if w.mu.standing != member {
		w.mu.base = len(w.mu.deaths)
		return e
	}
	s := w.mu.parcel
	if s == nil {
		return e
	}
	text, err := json.Marshal(w.inventory())
	if err != nil {
		panic(err) // it has numbers and texts alone
	}
	s.data = binary.LittleEndian.AppendUint64(make([]byte, 0, 16+len(text)+len(s.state)), uint64(len(text)))
	s.data = binary.LittleEndian.AppendUint64(s.data, uint64(len(s.state)))
	s.data = append(append(s.data, text...), s.state...)
	s.epoch, s.state = w.mu.epoch, nil
	for _, early := range s.early {
		e.sends = append(e.sends, s.answer(early.node, &early.header))
	}
	s.early = nil
	return e
}

// inventory lists what newcomers have to know. The lock is held.
func (w *Worker) inventory() *inventory {
	i := &inventory{Plan: w.mu.plan.number, Shares: w.mu.plan.plan.Shares(), Owed: w.mu.plan.tally.Owed()}
	for _, d := range w.mu.deaths {
		i.Deaths = append(i.Deaths, buriedNode{d.node, d.heirs})
	}
	for _, id := range slices.Sorted(maps.Keys(w.mu.byID)) {
		t := w.mu.byID[id]
		r := tensorRecord{
			Key: t.key, Name: t.label, Shape: t.shape, DType: t.dtype, Policy: t.policy, Size: t.size, Updated: t.ruled(), Next: t.next, Plan: t.plan, Runs: t.runs, Lost: t.lost,
		}
		if t.table != nil {
			r.Size, r.Row = t.declaration().Bytes, t.table.row
		}
		for _, c := range t.changes {
			r.Changes = append(r.Changes, planChange{c.number, c.first, c.runs})
		}
		i.Tensors = append(i.Tensors, r)
	}
	return i
}

// asked answers a newcomer's question for a chunk of the parcel.
func (w *Worker) asked(node uint32, h *wire.Header) error {
	if rankOf(node) < 0 {
		return fmt.Errorf("node %d asks for the state of the training, but is not a worker", node)
	}
	w.step(func() (e effects) {
		s := w.mu.parcel
		switch {
		case s != nil && s.data == nil && len(s.early) < wire.MaxWorkers:
			s.early = append(s.early, earlyAsk{node, *h})
		default:
			e.sends = []sending{s.answer(node, h)}
		}
		return e
	})
	return nil
}

// answer makes the answer to a newcomer: a chunk of the parcel, or a refusal.
func (s *parcel) answer(node uint32, h *wire.Header) sending {
	a := wire.Header{Kind: wire.Answer, Op: h.Op, Packet: h.Packet, Run: 1, Number: h.Number, Priority: h.Priority}
	from := uint64(h.Packet) * wire.PacketBytes
	if s == nil || from >= uint64(len(s.data)) {
		a.Flags = wire.FlagRefused
		return sending{node, 0, a, wire.PutReason(string(fault.Value) + ": this worker has nothing for newcomers now"), nil}
	}
	return sending{node, 0, a, s.data[from:min(from+wire.PacketBytes, uint64(len(s.data)))], nil}
}

// dropParcel drops what this worker keeps for newcomers: a round of their epoch has ended. The lock is held.
func (w *Worker) dropParcel(epoch uint16) {
	if s := w.mu.parcel; s != nil && s.data != nil && epoch >= s.epoch {
		w.mu.parcel = nil
	}
}
