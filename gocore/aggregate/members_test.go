package aggregate

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"fptps/gocore/wire"
)

// TestRepeatedRounds plays what arrives at an aggregator of three workers of which some die (d, with the rank) and others are admitted (j): contributions (c), notes that a
// worker has the sum (h) and recalled sums (k), each with rank, round and epoch, and ticks (t). The result lists the sums, each with round and epoch,
// the recalls, and the workers that get a recalled sum. No memory is left.
func TestRepeatedRounds(t *testing.T) {
	for name, tc := range map[string]struct{ play, want string }{
		"the dead has not contributed":              {"c050 c150 d2 c051 c151", "sum5.1"},
		"it has":                                    {"c250 c050 d2 c051 c151", "sum5.1"},
		"the round was complete here":               {"c050 c150 c250 d2 c051 c151", "sum5.0 sum5.1"},
		"and stands":                                {"c050 c150 c250 d2 c061 c161", "sum5.0 sum6.1"},
		"contributions of before come late":         {"c050 d2 c051 c150 c151 c150", "sum5.1"},
		"an old contribution does not count":        {"c050 d2 c051 c150 t c151", "[{3 5 [1] [0]}] sum5.1"},
		"two die":                                   {"c050 d2 d1 c052", "sum5.2"},
		"two die, one after another":                {"c050 c150 d2 c051 d1 c052", "sum5.2"},
		"the round before is repeated, too":         {"c050 c150 c250 c260 d2 c051 c151 c061 c161", "sum5.0 sum5.1 sum6.1"},
		"an heir of a round that stands":            {"d2 c050 h150 k150", "recall1 to0"},
		"a note of before comes late":               {"c050 d2 c051 h150 c151", "sum5.1"},
		"the worker with the sum dies":              {"h150 c050 d1 h250 k250", "recall1 recall2 to0"},
		"it dies, and nobody asks":                  {"h150 d1 h250 h050", ""},
		"it dies, and nobody else has the sum":      {"h150 c050 d1 c051 c251", "recall1 sum5.1"},
		"its answer comes after that":               {"h150 c050 d1 c051 k150 c251", "recall1 sum5.1"},
		"only the dead was ahead":                   {"c060 d0 t", ""},
		"under another plan":                        {"c050 d0 c171 c271", "sum7.1"},
		"a worker that lives was slow":              {"c050 d0 t c151 c251", "sum5.1"},
		"the sum of the living, of before":          {"c050 c150 d2 t", "held"},
		"a contribution is repeated":                {"d2 c051 c051 c151 c051", "sum5.1"},
		"rounds of all epochs, one after the other": {"c050 c150 c250 d2 c061 c161 d0 c172", "sum5.0 sum6.1 sum7.2"},
		"one is admitted":                           {"c050 c150 c250 j3 c061 c361 c161 c261", "sum5.0 sum6.1"},
		"and is waited for":                         {"j3 c061 c161 c261 t c361", "[{3 6 [3] [0 1 2]}] sum6.1"},
		"it dies":                                   {"j3 c061 c161 c261 d3 c062 c162 c262", "sum6.2"},
		"it dies after it has contributed":          {"j3 c361 c061 d3 c062 c162 c262", "sum6.2"},
		"one dies, another is admitted":             {"d1 j3 c062 c362 c262", "sum6.2"},
		"of rank 64, after 61 others":               {"d1 jp c062 c262 cp62", "sum6.2"},
	} {
		for _, policy := range []wire.Policy{wire.Sync, wire.Ordered} {
			t.Run(fmt.Sprintf("%s, %v", name, policy), func(t *testing.T) {
				pool, members := NewPool(), NewMembers(3)
				now := time.Time{}
				slots := NewSlots(members, pool, now)
				var got []string
				for _, step := range strings.Fields(tc.play) {
					if step == "t" {
						now = now.Add(2 * StallAfter)
						if stalls := slots.Tick(now); len(stalls) > 0 {
							got = append(got, fmt.Sprint(stalls))
						}
						continue
					}
					rank := int(step[1] - '0')
					if step[0] == 'd' {
						members.Bury(rank)
						continue
					}
					if step[0] == 'j' {
						members.Join(rank)
						continue
					}
					h := contribution(3, 1, uint64(step[2]-'0'))
					h.Epoch, h.Policy, h.DType = uint16(step[3]-'0'), policy, wire.Float32
					var err error
					switch step[0] {
					case 'c':
						b := pool.Get(4 * ints)
						sum, done, e := slots.Add(rank, h, b.Bytes, b)
						if err = e; done {
							got = append(got, fmt.Sprintf("sum%d.%d", sum.Header.Round, sum.Header.Epoch))
							sum.Buffer.Release()
						}
					case 'h':
						note := have(1, 1, h.Round)
						note.Epoch = h.Epoch
						err = slots.Have(rank, note)
					case 'k':
						if owed := slots.Kept(rank, h); owed != nil {
							got = append(got, "to"+strings.Trim(fmt.Sprint(owed), "[]"))
						}
						continue
					}
					if err != nil && err != ErrStale {
						t.Fatalf("%s: %v", step, err)
					}
					for _, r := range slots.Recalls() {
						got = append(got, fmt.Sprintf("recall%d", r.Rank))
					}
				}
				if tc.want == "held" { // what waits for a dead worker is held, and named to nobody
					if len(got) != 0 || pool.Lent() == 0 {
						t.Errorf("%q, %d buffers", got, pool.Lent())
					}
					return
				}
				if text := strings.Join(got, " "); text != tc.want {
					t.Errorf("%s: %q, expected %q", tc.play, text, tc.want)
				}
				if n := pool.Lent(); n != 0 {
					t.Errorf("%d buffers are lent", n)
				}
			})
		}
	}
}

// The mean and the order of ranks are those of the workers that are left.
func TestSumOfThoseThatAreLeft(t *testing.T) {
	members := NewMembers(4)
	slots := NewSlots(members, NewPool(), time.Time{})
	members.Bury(1)
	for _, rank := range []int{3, 2, 0} {
		h := contribution(3, 1, 5)
		h.Epoch, h.Policy, h.Op, h.DType = 1, wire.Ordered, wire.OpMean, wire.Float32
		payload := values(rank, 3, 1, 5)
		clear(payload)
		binary.LittleEndian.PutUint32(payload, math.Float32bits(map[int]float32{0: 3, 2: 6, 3: 6}[rank]))
		sum, done, err := slots.Add(rank, h, payload, nil)
		if err != nil || done != (rank == 0) {
			t.Fatalf("rank %d: done %v, error %v", rank, done, err)
		}
		if done && (sum.Header.Contributors != 3 || math.Float32frombits(binary.LittleEndian.Uint32(sum.Buffer.Bytes)) != 5) {
			t.Errorf("%d contributors, %x", sum.Header.Contributors, sum.Buffer.Bytes[:4])
		}
	}
}

// No node contributes to an epoch that this node does not know, or after its own death.
func TestStrangersOfAnEpoch(t *testing.T) {
	members := NewMembers(2)
	slots := NewSlots(members, NewPool(), time.Time{})
	try := func(rank int, epoch uint16) error {
		h := contribution(3, 1, 5)
		h.Epoch = epoch
		_, _, err := slots.Add(rank, h, values(rank, 3, 1, 5), nil)
		return err
	}
	if err := try(0, 1); err == nil {
		t.Error("a contribution of an epoch that has not begun")
	}
	members.Bury(1)
	if err := try(1, 1); err == nil {
		t.Error("a contribution of a dead worker")
	}
	if members.Size() != 1 {
		t.Errorf("%d members", members.Size())
	}
}

// A worker that has died had begun a round under a plan of which nobody else has heard: the others' contributions are no error. They repeat the round.
func TestAPlanThatOnlyTheDeadKnew(t *testing.T) {
	members := NewMembers(3)
	slots := NewSlots(members, NewPool(), time.Time{})
	slots.Recovers = true
	add := func(rank int, epoch, plan uint16) (done bool) {
		h := contribution(3, 1, 5)
		h.Epoch, h.Plan = epoch, plan
		_, done, err := slots.Add(rank, h, values(rank, 3, 1, 5), nil)
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	add(0, 0, 1)
	add(1, 0, 0)
	members.Bury(0)
	if add(1, 1, 0) || !add(2, 1, 0) {
		t.Error("the repeated round is not complete with the contributions of those that live")
	}
}
