package cluster

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

var update = flag.Bool("update", false, "rewrite testdata/*.txt with what the scheduler does now")

// TestTraces runs the scripts in testdata. A line of a script is a command; the
// indented lines after it are the scheduler's actions, each with its second. A new
// script is written without them and run with -update.
func TestTraces(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(text))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(text) {
				t.Errorf("%s: the scheduler now does:\n%s", file, got)
			}
		})
	}
}

// script is a scheduler under a made-up clock.
type script struct {
	t         *testing.T
	scheduler *Scheduler
	now       time.Time
	start     time.Time
	token     [16]byte
	out       strings.Builder
	last      string // list of nodes, as it was sent last
}

func runScript(t *testing.T, text string) string {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := &script{t: t, now: start, start: start}
	copy(s.token[:], "the-run's-token!")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		s.out.WriteString(line)
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			s.command(line)
		}
	}
	return s.out.String()
}

// command does one line: a verb, words, and name=value pairs.
func (s *script) command(line string) {
	verb, words, values := parse(line)
	switch verb {
	case "cluster":
		s.cluster(values)
	case "up": // workers at w:1, w:2, ..., servers at s:1, s:2, ... have joined
		for role, n := range map[string]int{"worker": number(values["workers"], 0), "server": number(values["servers"], 0)} {
			for i := range n {
				s.scheduler.Step(s.now, 0, role[:1], s.joinMessage([]string{role, fmt.Sprintf("%c:%d", role[0], i+1)}, values))
			}
		}
	case "join": // from the address that the node names, unless host is another one
		m := s.joinMessage(words, values)
		if values["host"] == "" {
			values["host"] = m.Control.Node[0].GetHostname()
		}
		s.step(values, 0, m)
	case "barrier":
		m := barrierMessage(int32(number(values["group"], 7)), 0, int32(number(values["customer"], 0)), true)
		s.step(values, nodeID(words[0]), m)
	case "declare":
		m := &pspb.Declare{
			Key: proto.Uint64(uint64(number(values["key"], 0))), Bytes: proto.Uint64(uint64(number(values["bytes"], 0))),
			Dtype: proto.Uint32(dtype(values["dtype"])), Policy: proto.Uint32(uint32(number(values["policy"], 0))),
			Row: proto.Uint32(uint32(number(values["row"], 0))), Name: optional(values["name"]), Shape: optional(values["shape"]),
		}
		s.step(values, nodeID(words[0]), &pspb.Meta{Own: &pspb.Meta_Declare{Declare: m}})
	case "doing": // a question about a node, or an answer to it
		m := &pspb.Doing{Id: proto.Int32(int32(nodeID(values["of"]))), State: optional(values["state"]), Stack: optional(values["stack"])}
		if values["round"] != "" {
			m.Tensor, m.Round = proto.Uint32(uint32(number(values["tensor"], 0))), proto.Uint64(uint64(number(values["round"], 0)))
		}
		s.step(values, nodeID(words[0]), &pspb.Meta{Own: &pspb.Meta_Doing{Doing: m}})
	case "ack":
		m := &pspb.Meta{Control: &pspb.Control{Cmd: proto.Int32(pspb.Ack), MsgSig: proto.Uint64(5)}}
		s.step(values, nodeID(words[0]), m)
	case "withdraw":
		s.step(values, nodeID(words[0]), withdrawMessage(number(values["group"], WorkerGroup), number(values["customer"], 0)))
	case "close": // workers' last rounds: two tensors' and a third's
		m := barrierMessage(AllGroup, 0, 0, true)
		m.Own = &pspb.Meta_Closed{Closed: &pspb.Closed{Counts: []uint32{2, 1}, Rounds: []uint64{20, 19}}}
		s.step(values, nodeID(words[0]), m)
	case "capacity": // Mbit/s; "w0:20" is a path
		rate := func(name string) *float64 {
			megabits, err := strconv.ParseFloat(values[name], 64)
			if err != nil {
				return nil
			}
			return proto.Float64(megabits * 1e6 / 8)
		}
		m := &pspb.Capacity{Up: rate("up"), Down: rate("down"), Carried: rate("carried")}
		for _, word := range words[1:] {
			name, _, _ := strings.Cut(word, ":")
			values[name] = word[len(name)+1:]
			m.Path = append(m.Path, &pspb.Capacity_Path{Node: proto.Int32(int32(nodeID(name))), Rate: rate(name)})
		}
		s.step(values, nodeID(words[0]), &pspb.Meta{Own: &pspb.Meta_Capacity{Capacity: m}})
	case "promise": // of two tensors, and of a third that keeps its plan
		m := &pspb.Promise{Plan: proto.Uint32(uint32(number(values["plan"], 0))), Counts: []uint32{2, 1}, Rounds: []uint64{uint64(number(values["round"], 0)), wire.NoRound}, Unpushed: proto.Uint32(uint32(number(values["unpushed"], 0)))}
		s.step(values, nodeID(words[0]), &pspb.Meta{Own: &pspb.Meta_Promise{Promise: m}})
	case "stateful":
		s.step(values, nodeID(words[0]), &pspb.Meta{Own: &pspb.Meta_Stateful{Stateful: &pspb.Stateful{What: proto.String("the optimiser of key 3")}}})
	case "announce": // with the members that it knows, and what it knows of the decisions
		s.announce(words, values)
	case "leave":
		s.step(values, nodeID(words[0]), &pspb.Meta{Own: &pspb.Meta_Leave{Leave: &pspb.Leave{Why: proto.String("it left by ValueError: a\x1b[2Jb\n")}}})
	case "suspect":
		m := &pspb.Suspect{Id: proto.Int32(int32(nodeID(words[1]))), Why: proto.String("reset by peer"), Incarnation: proto.Uint64(s.life(words[1], values["of"]))}
		s.step(values, nodeID(words[0]), &pspb.Meta{Own: &pspb.Meta_Suspect{Suspect: m}})
	case "beat":
		s.step(values, nodeID(words[0]), heartbeat(Member{ID: nodeID(words[0]), Role: RoleWorker, Host: "x", Port: 1}))
	case "stray":
		s.step(values, number(values["from"], 0), &pspb.Meta{Control: &pspb.Control{Cmd: proto.Int32(int32(number(values["cmd"], 0)))}})
	case "mail":
		s.step(values, nodeID(words[0]), &pspb.Meta{AppId: proto.Int32(3)})
	case "arrive":
		s.print(s.scheduler.Arrive(number(values["group"], 7)))
	case "gone":
		s.print(s.scheduler.Gone(s.now, nodeID(words[0]), s.life(words[0], values["of"]), "its connection was closed"))
	case "pass": // time, with its ticks
		s.pass(duration(words[0]))
	case "stall": // time in which this process stood still
		s.now = s.now.Add(duration(words[0]))
	case "counts":
		s.write(fmt.Sprintf("%+v", s.scheduler.Counts()))
	default:
		s.t.Fatalf("unknown command %q", line)
	}
}

func (s *script) cluster(values map[string]string) {
	s.scheduler = NewScheduler(Config{
		SchedulerHost: "sched", SchedulerPort: 9000, DataPort: 9001, Secret: values["secret"],
		Workers: number(values["workers"], 0), Servers: number(values["servers"], 0),
		Attends: values["attends"] != "", Recovers: values["recovers"] != "", RecoveryTimeout: duration(values["recovery"]), Resend: values["resend"] != "",
		HeartbeatInterval: 5 * time.Second, HeartbeatTimeout: duration(values["timeout"]), SchedulerTimeout: duration(values["outlives"]),
	}, s.token)
}

// announce gives the scheduler a node's announcement. The node of "w0" is at w:1; "+w1" is a newcomer, "-w1" one that the node suspects.
func (s *script) announce(words []string, values map[string]string) {
	member := func(name string) Member {
		m := Member{ID: nodeID(name), Role: RoleWorker, Host: name[:1], Share: 1, Protocol: Protocol}
		if name[0] == 's' {
			m.Role = RoleServer
		}
		m.Port = m.Rank() + 1
		m.DataPort, m.Incarnation = m.Port+1, uint64(10*m.Port)
		return m
	}
	me := member(words[0])
	terms := []*pspb.Known_Term{{Number: proto.Uint32(1), Start: proto.Uint64(0)}}
	if start := values["second"]; start != "" { // term, after that decision
		terms = append(terms, &pspb.Known_Term{Number: proto.Uint32(2), Start: proto.Uint64(uint64(number(start, 0)))})
	}
	known := &pspb.Known{
		Decision: proto.Uint64(uint64(number(values["decision"], 0))), Term: terms, NextServer: proto.Int32(12), NextWorker: proto.Int32(15), Begun: proto.Bool(values["begun"] != "no"),
		Epoch: proto.Uint32(uint32(number(values["epoch"], 0))), Settling: proto.Bool(values["settling"] != ""), Plan: proto.Uint32(uint32(number(values["plan"], 0))),
		Preparing: proto.Bool(values["preparing"] != ""), Admitting: proto.Bool(values["admitting"] != ""),
	}
	own := &pspb.Announce{Secret: proto.String(values["secret"]), Term: terms, Node: nodeOf(me), Known: known}
	for i, name := range words {
		newcomer, suspected := name[0] == '+', name[0] == '-'
		m := member(strings.TrimLeft(name, "+-"))
		m.Newcomer = newcomer
		own.Member = append(own.Member, nodeOf(m))
		if suspected {
			own.Suspect = append(own.Suspect, int32(m.ID))
		}
		if i > 0 || values["keeps"] == "" {
			continue
		}
		for n := number(values["keeps"], 0); n <= int(known.GetDecision()); n++ {
			own.Decision = append(own.Decision, &pspb.Meta{Decision: proto.Uint64(uint64(n)), Own: &pspb.Meta_Meet{Meet: &pspb.Meet{Points: proto.Uint64(uint64(n))}}})
		}
	}
	m := &pspb.Meta{Own: &pspb.Meta_Announce{Announce: own}, Token: s.token[:], Incarnation: proto.Uint64(me.Incarnation)}
	if values["token"] == "wrong" {
		m.Token = []byte("another token...")
	}
	host := values["host"]
	if host == "" {
		host = me.Host
	}
	s.print(s.scheduler.Step(s.now, me.ID, host, m))
}

func (s *script) joinMessage(words []string, values map[string]string) *pspb.Meta {
	roles := map[string]Role{"server": RoleServer, "worker": RoleWorker, "scheduler": RoleScheduler, "nobody": 77}
	colon := strings.LastIndex(words[1], ":")
	host, port := words[1][:colon], words[1][colon+1:]
	defaultShare := 1
	if values["share"] == "unset" {
		defaultShare = Unset
	}
	m := Member{
		Role: roles[words[0]], Host: host, Port: number(port, 0), DataPort: number(port, 0) + 1,
		Incarnation: uint64(number(values["incarnation"], number(port, 0)*10)), Share: number(values["share"], defaultShare),
		Place: uint32(number(values["place"], 0)), Protocol: uint32(number(values["protocol"], Protocol)),
		Customer: number(values["customer"], 0), Classic: values["classic"] != "",
	}
	c := Config{
		Secret:  values["secret"],
		Workers: number(values["workers"], s.scheduler.c.Workers), Servers: number(values["servers"], s.scheduler.c.Servers),
	}
	meta := addNode(c, m)
	if m.Protocol == 0 {
		meta.Own = nil
		meta.Control.Node[0].Id = proto.Int32(32767)
	}
	return meta
}

// step gives a message to the scheduler, with the token unless the script says otherwise.
func (s *script) step(values map[string]string, from int, m *pspb.Meta) {
	switch values["token"] {
	case "":
		m.Token = s.token[:]
	case "wrong":
		m.Token = []byte("another token...")
	}
	if stamp := values["timestamp"]; stamp != "" {
		m.Timestamp = proto.Int32(int32(number(stamp, 0)))
	}
	if from > 0 {
		m.Incarnation = proto.Uint64(uint64(number(values["life"], int(s.scheduler.incarnation(from)))))
	}
	s.print(s.scheduler.Step(s.now, from, values["host"], m))
}

// life is the incarnation of the process called name now, unless the script names another.
func (s *script) life(name, other string) uint64 {
	return uint64(number(other, int(s.scheduler.incarnation(nodeID(name)))))
}

// pass lets time pass as a Runner does: a Tick every second and at Due.
func (s *script) pass(d time.Duration) {
	for end := s.now.Add(d); s.now.Before(end); {
		next := s.now.Add(time.Second)
		if due := s.scheduler.Due(); !due.IsZero() && due.Before(next) {
			next = due
		}
		s.now = next
		s.print(s.scheduler.Tick(s.now))
	}
}

func (s *script) print(actions []Action) {
	for _, a := range actions {
		text := a.String()
		if send, ok := a.(Send); ok {
			send.Meta.Incarnation = nil // the scheduler's own, in each
			text = send.String()
			mark := fmt.Sprintf(" token:%q", s.token[:])
			if !strings.Contains(text, mark) {
				mark = ""
				text = strings.Replace(text, ":", " (no token):", 1)
			}
			text = strings.Replace(text, mark, "", 1)
			if _, list, found := strings.Cut(text, ": control:{cmd:2 "); found {
				if list == s.last {
					text = strings.Replace(text, list, "the same}", 1)
				}
				s.last = list
			}
			if send.ID > 0 {
				text = strings.Replace(text, "send "+strconv.Itoa(send.ID), "send "+Name(send.ID), 1)
			}
		}
		s.write(text)
	}
}

func (s *script) write(text string) {
	fmt.Fprintf(&s.out, "  %v %s\n", s.now.Sub(s.start), text)
}

func parse(line string) (verb string, words []string, values map[string]string) {
	values = map[string]string{}
	fields := strings.Fields(line)
	for _, f := range fields[1:] {
		if name, value, ok := strings.Cut(f, "="); ok {
			values[name] = value
		} else {
			words = append(words, f)
		}
	}
	return fields[0], words, values
}

// nodeID reads "w0", "s1".
func nodeID(name string) int {
	rank := number(name[1:], 0)
	if name[0] == 's' {
		return wire.ServerID(rank)
	}
	return wire.WorkerID(rank)
}

func dtype(name string) uint32 {
	for _, d := range wire.DTypes() {
		if d.String() == name {
			return uint32(d)
		}
	}
	return 200
}

func number(text string, otherwise int) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return otherwise
	}
	return n
}

func duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0
	}
	return d
}
