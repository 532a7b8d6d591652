package cluster

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"fptps/gocore/van"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// The bytes that ps-lite's numbers and types ask for, written by hand.
const (
	host    = "1a 08 31302e302e302e37" // field 3, "10.0.0.7"
	port    = "20 c03e"                // field 4, 8000
	askNode = "1a 13  08 02  12 0f 08 01 " + host + port
)

// ours are messages that our nodes send, and their bytes without our own fields.
func ours() map[string]struct {
	meta *pspb.Meta
	hex  string
} {
	me := Member{Role: RoleWorker, Host: "10.0.0.7", Port: 8000, DataPort: 8001, Incarnation: 3, Share: 4, Place: 5, Protocol: Protocol}
	with9 := me
	with9.ID = 9
	return map[string]struct {
		meta *pspb.Meta
		hex  string
	}{
		"ADD_NODE":  {addNode(Config{Secret: "x", Workers: 2}, me), askNode},
		"HEARTBEAT": {heartbeat(with9), "1a 15  08 05  12 11 08 01 10 09 " + host + port},
		"clocks":    {clock(heartbeat(with9), 7, 8), "1a 15  08 05  12 11 08 01 10 09 " + host + port},
		"BARRIER":   {barrierMessage(AllGroup, 0, 0, true), "1a 04 08 03 18 07  20 01 38 00 50 00"},
		"answer":    {barrierMessage(WorkerGroup, 3, 2, false), "1a 04 08 03 18 04  20 00 38 03 50 02"},
		"TERMINATE": {&pspb.Meta{Control: &pspb.Control{Cmd: proto.Int32(pspb.Terminate)}}, "1a 02 08 01"},
	}
}

func TestOurBytesArePsLites(t *testing.T) {
	for name, c := range ours() {
		c.meta.Token = []byte("sixteen bytes...")
		c.meta.Generation, c.meta.Epoch = proto.Uint32(1), proto.Uint32(1)
		raw := mustEncode(t, c.meta)
		want, err := hex.DecodeString(strings.ReplaceAll(c.hex, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got := withoutOwn(t, raw, "meta"); !bytes.Equal(got, want) {
			t.Errorf("%s: without fptps's own fields it is\n%x, want\n%x", name, got, want)
		}
		if len(raw) <= len(want) {
			t.Errorf("%s: our own fields are missing", name)
		}
	}
}

// withoutOwn takes the fields from 1000 on out of a message, as ps-lite does.
func withoutOwn(t *testing.T, raw []byte, kind string) []byte {
	t.Helper()
	var out []byte
	within := map[string]map[protowire.Number]string{"meta": {3: "control"}, "control": {2: "node"}}
	for len(raw) > 0 {
		number, wireType, n := protowire.ConsumeTag(raw)
		if n < 0 {
			t.Fatalf("%s: %v", kind, protowire.ParseError(n))
		}
		size := n + protowire.ConsumeFieldValue(number, wireType, raw[n:])
		field := raw[:size]
		if inner, ok := within[kind][number]; ok {
			value, _ := protowire.ConsumeBytes(raw[n:])
			field = protowire.AppendBytes(protowire.AppendTag(nil, number, wireType), withoutOwn(t, value, inner))
		}
		if number < 1000 {
			out = append(out, field...)
		}
		raw = raw[size:]
	}
	return out
}

func TestViews(t *testing.T) {
	me := Member{ID: 9, Role: RoleWorker, Host: "w", Port: 5, Incarnation: 7, Protocol: Protocol}
	server := Member{ID: 8, Role: RoleServer, Host: "s", Port: 5, Incarnation: 8, Protocol: Protocol}
	scheduler := Member{ID: 1, Role: RoleScheduler, Host: "sched", Port: 5, Protocol: Protocol}
	change := func(m Member, f func(*Member)) Member { f(&m); return m }
	for name, c := range map[string]struct {
		members []Member
		good    bool
	}{
		"whole":                   {[]Member{me, server, scheduler}, true},
		"of a ps-lite scheduler":  {[]Member{change(me, func(m *Member) { m.Protocol = 0 }), scheduler}, true},
		"empty":                   {nil, false},
		"without me":              {[]Member{server, scheduler}, false},
		"an earlier process":      {[]Member{change(me, func(m *Member) { m.Incarnation++ }), scheduler}, false},
		"another port":            {[]Member{change(me, func(m *Member) { m.Port++ }), scheduler}, false},
		"another role":            {[]Member{change(me, func(m *Member) { m.Role, m.ID = RoleServer, 10 }), scheduler}, false},
		"one id twice":            {[]Member{me, change(me, func(m *Member) { m.Port++ }), scheduler}, false},
		"a server's id":           {[]Member{change(me, func(m *Member) { m.ID = 8 }), scheduler}, false},
		"an id too large":         {[]Member{me, change(server, func(m *Member) { m.ID = 8 + 2*wire.MaxWorkers }), scheduler}, false},
		"no id":                   {[]Member{change(me, func(m *Member) { m.ID = 0 }), scheduler}, false},
		"no scheduler":            {[]Member{me, server}, false},
		"the scheduler not last":  {[]Member{me, scheduler, server}, false},
		"two schedulers":          {[]Member{me, scheduler, scheduler}, false},
		"a share too large":       {[]Member{me, change(server, func(m *Member) { m.Share = wire.MaxShare + 1 }), scheduler}, false},
		"a port too large":        {[]Member{me, change(server, func(m *Member) { m.Port = 65536 }), scheduler}, false},
		"no host":                 {[]Member{me, change(server, func(m *Member) { m.Host = "" }), scheduler}, false},
		"a host that is no name":  {[]Member{me, change(server, func(m *Member) { m.Host = "eth0;1.2.3.4" }), scheduler}, false},
		"a host that is too long": {[]Member{me, change(server, func(m *Member) { m.Host = strings.Repeat("x", 254) }), scheduler}, false},
	} {
		m := &pspb.Meta{Control: &pspb.Control{Cmd: proto.Int32(pspb.AddNode)}}
		for _, member := range c.members {
			m.Control.Node = append(m.Control.Node, nodeOf(member))
		}
		v, err := viewOf(m, me)
		if (err == nil) != c.good || c.good && v.Self != me.ID {
			t.Errorf("%s: self %d, error %v, want good %v", name, v.Self, err, c.good)
		}
	}
}

// FuzzScheduler: whatever messages come from whomever, the scheduler neither
// panics nor grows, and the ids it speaks to are those that it knows.
func FuzzScheduler(f *testing.F) {
	for _, c := range ours() {
		raw, err := van.Encode(c.meta)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, uint8(0), uint8(9))
		f.Add(raw, uint8(9), uint8(8))
	}
	for _, own := range []*pspb.Meta{
		{Own: &pspb.Meta_Declare{Declare: &pspb.Declare{Key: proto.Uint64(3), Bytes: proto.Uint64(8), Dtype: proto.Uint32(12)}}},
		Progress{At: time.Second, Rounds: 3, Up: 1e6, Waiting: "key 3", Missing: []string{"worker 1"}, Warning: "odd"}.message(),
		{Own: &pspb.Meta_StatusAsk{StatusAsk: &pspb.StatusAsk{Secret: proto.String("x")}}},
		{Own: &pspb.Meta_Suspect{Suspect: &pspb.Suspect{Id: proto.Int32(8)}}},
		{Own: &pspb.Meta_Doing{Doing: &pspb.Doing{Id: proto.Int32(9), Tensor: proto.Uint32(3), Round: proto.Uint64(7)}}},
		{Own: &pspb.Meta_Doing{Doing: &pspb.Doing{Id: proto.Int32(9), State: proto.String("it loads\n"), Stack: proto.String("main")}}},
	} {
		raw, err := van.Encode(own)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, uint8(9), uint8(11))
	}
	f.Fuzz(func(t *testing.T, raw []byte, first, second uint8) {
		e, err := van.Decode(nil, [][]byte{raw})
		if err != nil {
			return
		}
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		s := NewScheduler(Config{SchedulerHost: "sched", SchedulerPort: 1, Workers: 2, Servers: 1}, [16]byte{1})
		host := "" // that the message comes from: the one that it names
		if nodes := e.Meta.GetControl().GetNode(); len(nodes) > 0 {
			host = nodes[0].GetHostname()
		}
		known := map[int]bool{}
		check := func(actions []Action) {
			for _, a := range actions {
				switch a := a.(type) {
				case Connect:
					known[a.ID] = true
					if !validHost(a.Host) || a.Port < 1 || a.Port > 65535 {
						t.Errorf("%v", a)
					}
				case Disconnect:
					delete(known, a.ID)
				case Send:
					if !known[a.ID] {
						t.Errorf("a message for %d, which is not connected", a.ID)
					}
				}
			}
		}
		// Before, while and after the cluster gathers, with and without its token.
		for round := range 4 {
			for _, from := range []int{0, int(first), int(second)} {
				for _, token := range [][]byte{e.Meta.Token, s.token[:]} {
					m := proto.Clone(e.Meta).(*pspb.Meta)
					m.Token = token
					check(s.Step(now, from, host, m))
				}
			}
			if round < 3 {
				join := addNode(Config{}, Member{Role: Role(round % 2), Host: "h", Port: 100 + round, Incarnation: uint64(round + 1), Protocol: Protocol})
				check(s.Step(now, 0, "h", join))
			}
			now = now.Add(time.Second)
			check(s.Tick(now))
		}
		if len(s.joiners) > 3 || len(s.members) > 3 || len(s.barriers) > 10 || len(s.ledger.open) > 1 || len(s.strays) > 20 {
			t.Errorf("%d joiners, %d members, %d barriers, %d open keys, %d strays of one message",
				len(s.joiners), len(s.members), len(s.barriers), len(s.ledger.open), len(s.strays))
		}
	})
}

// FuzzView: whatever list of nodes comes, a view of it makes sense.
func FuzzView(f *testing.F) {
	me := Member{Role: RoleWorker, Host: "w", Port: 5, Incarnation: 7, Protocol: Protocol}
	s := NewScheduler(Config{SchedulerHost: "sched", SchedulerPort: 1, Workers: 2, Servers: 1}, [16]byte{1})
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s.Step(now, 0, "", addNode(Config{}, me))
	s.Step(now, 0, "", addNode(Config{}, Member{Role: RoleWorker, Host: "x", Port: 5, Protocol: Protocol}))
	for _, a := range s.Step(now, 0, "", addNode(Config{}, Member{Role: RoleServer, Host: "y", Port: 5, Protocol: Protocol})) {
		if send, ok := a.(Send); ok {
			raw, err := van.Encode(send.Meta)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(raw)
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := van.Decode(nil, [][]byte{raw})
		if err != nil {
			return
		}
		v, err := viewOf(e.Meta, me)
		if err != nil {
			return
		}
		if v.Me().Host != me.Host || v.Me().Role != me.Role || v.Members[len(v.Members)-1].Role != RoleScheduler {
			t.Errorf("%+v", v)
		}
		for _, m := range v.Members {
			if !fits(m.ID, m.Role) || v.Member(m.ID) != m {
				t.Errorf("%+v", m)
			}
		}
	})
}
