package cluster

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/fault"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

func TestProgressInItsMessage(t *testing.T) {
	p := Progress{
		At: 7 * time.Second, Rounds: 1, Steps: 2, Pushed: 3, Sent: 4, Received: 5, LinkSent: 6, LinkReceived: 7, Waited: 8 * time.Millisecond,
		Up: 9e6, Down: 10e6, Plan: 11, Waiting: "key 3 round 7", Missing: []string{"worker 1"}, Stalled: 12 * time.Second,
		Warning: "it is slow", Warned: 13 * time.Second, Metrics: "10.0.0.1:9401",
	}
	if got := progressIn(p.message().GetProgress()); !reflect.DeepEqual(got, p) {
		t.Errorf("%+v became %+v", p, got)
	}
	if got := progressIn(Progress{}.message().GetProgress()); !reflect.DeepEqual(got, Progress{}) {
		t.Errorf("nothing became %+v", got)
	}
}

func TestReportsAreBounded(t *testing.T) {
	huge := strings.Repeat("x\x1b[2J", 1000)
	m := &pspb.Progress{
		At: proto.Uint64(math.MaxUint64), Waited: proto.Uint64(math.MaxUint64), Stalled: proto.Uint64(math.MaxUint64), Warned: proto.Uint64(math.MaxUint64),
		Up: proto.Float64(math.NaN()), Down: proto.Float64(math.Inf(1)), Waiting: &huge, Warning: &huge,
	}
	for range 100 {
		m.Missing = append(m.Missing, huge)
	}
	p := progressIn(m)
	if p.At <= 0 || p.Waited <= 0 || p.Stalled <= 0 || p.Warned <= 0 || p.Up != 0 || p.Down != 0 || len(p.Missing) != maxMissing {
		t.Errorf("%+v", p)
	}
	for _, text := range append(p.Missing, p.Waiting, p.Warning) {
		if len(text) > 600 || strings.ContainsRune(text, 0x1b) {
			t.Errorf("a text of %d bytes: %.30q", len(text), text)
		}
	}
}

func TestRates(t *testing.T) {
	type report struct {
		incarnation uint64
		seconds     float64
		rounds      uint64
	}
	for name, c := range map[string]struct {
		reports []report
		rate    float64
		known   bool
	}{
		"none":                         {nil, 0, false},
		"the first counts from 0":      {[]report{{1, 0.5, 10}}, 20, true},
		"all":                          {[]report{{1, 1, 10}, {1, 2, 20}, {1, 4, 80}}, 20, true},
		"the last six":                 {[]report{{1, 1, 900}, {1, 2, 901}, {1, 3, 902}, {1, 4, 903}, {1, 5, 904}, {1, 6, 905}, {1, 7, 907}}, 6. / 5, true},
		"a lost one":                   {[]report{{1, 1, 10}, {1, 4, 40}}, 10, true},
		"another process":              {[]report{{1, 1, 500}, {1, 2, 900}, {2, 1, 5}}, 5, true},
		"of a new scheduler":           {[]report{{1, 100, 500}}, 0, false},
		"of a new scheduler, later":    {[]report{{1, 100, 500}, {1, 102, 520}}, 10, true},
		"the same twice begins anew":   {[]report{{1, 100, 500}, {1, 100, 600}}, 0, false},
		"a count that falls is no one": {[]report{{1, 100, 500}, {1, 101, 400}}, 0, true},
	} {
		r := &reports{}
		for _, each := range c.reports {
			r.add(time.Unix(0, 0), each.incarnation, Progress{At: time.Duration(each.seconds * 1e9), Rounds: each.rounds})
		}
		rate, known := r.per(func(p Progress) float64 { return float64(p.Rounds) })
		if math.Abs(rate-c.rate) > 1e-9 || known != c.known {
			t.Errorf("%s: %v, %v", name, rate, known)
		}
		if len(r.last) > rateReports {
			t.Errorf("%s: %d reports are kept", name, len(r.last))
		}
	}
}

func TestSlowest(t *testing.T) {
	share := func(x float64) *float64 { return &x }
	for name, c := range map[string]struct {
		waits []float64 // of worker 0, 1, ...
		want  string
	}{
		"nobody":           {nil, ""},
		"one":              {[]float64{0}, ""},
		"the second":       {[]float64{0.8, 0.1, 0.7}, "worker 1"},
		"of two":           {[]float64{0.1, 0.6}, "worker 0"},
		"all the same":     {[]float64{0.7, 0.7, 0.71}, ""},
		"a little":         {[]float64{0.7, 0.55, 0.7}, ""},
		"half of them are": {[]float64{0.1, 0.1, 0.7, 0.7}, "worker 0"},
		"most of them are": {[]float64{0.1, 0.1, 0.1, 0.7}, ""},
	} {
		nodes := []Node{{Name: "server 0", State: "running"}}
		for i, w := range c.waits {
			nodes = append(nodes, Node{Name: fmt.Sprintf("worker %d", i), State: "running", WaitShare: share(w), RoundRate: share(5)})
		}
		nodes = append(nodes, Node{Name: "worker 90", State: "silent", WaitShare: share(0), RoundRate: share(5)}, Node{Name: "worker 91", State: "running", WaitShare: share(0), RoundRate: share(0)})
		got := ""
		if s := slowest(nodes); s != nil {
			got = *s
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// report has a member of a script send a report.
func (s *script) report(id int, p Progress) {
	m := p.message()
	m.Token, m.Incarnation = s.token[:], proto.Uint64(s.scheduler.incarnation(id))
	s.scheduler.Step(s.now, id, "", m)
}

// TestStatusOverALife reads what a status says of a cluster from its gathering to the death of a node.
func TestStatusOverALife(t *testing.T) {
	s := &script{t: t, now: time.Unix(1000, 0), start: time.Unix(1000, 0)}
	status := func() Status { return s.scheduler.Status(s.now) }
	s.command("cluster workers=2 servers=1 recovers=1")
	s.command("join worker w:1")
	if got := status(); got.State != "joining" || len(got.Nodes) != 1 || got.Nodes[0].State != "joining" || got.Waiting == nil || fmt.Sprint(got.Waiting.Missing) != "[1 worker 1 server]" {
		t.Errorf("while it gathers: %+v, %+v", got, got.Waiting)
	}
	s.command("join worker w:2")
	s.command("join server s:1")
	s.pass(time.Second)
	s.command("barrier w0")
	s.pass(time.Second)
	if got := status(); got.State != "running" || got.Waiting == nil || fmt.Sprint(got.Waiting.For, got.Waiting.Missing, *got.Waiting.Seconds) != "start[server 0 worker 1] 1" {
		t.Errorf("at the start: %+v, %+v", got, got.Waiting)
	}
	s.command("barrier s0")
	s.command("barrier w1")
	s.command("barrier w1 group=4")
	if got := status().Waiting; got == nil || got.For != "barrier" || fmt.Sprint(got.Missing) != "[worker 0]" {
		t.Errorf("in a barrier: %+v", got)
	}
	s.command("barrier w0 group=4")
	w0, w1, s0 := wire.WorkerID(0), wire.WorkerID(1), wire.ServerID(0)
	s.report(w0, Progress{At: time.Second, Rounds: 20, Steps: 10, Waited: 900 * time.Millisecond, Sent: 1e6, LinkSent: 5e5, Up: 1e6, Plan: 3, Warning: "odd", Warned: time.Second})
	s.report(w1, Progress{At: time.Second, Rounds: 20, Steps: 10, Waited: 100 * time.Millisecond, Waiting: "key 1 round 4", Missing: []string{"worker 0"}, Stalled: 3 * time.Second})
	s.report(s0, Progress{At: time.Second, Sent: 2e6})
	s.now = s.now.Add(2 * time.Second)
	got := status()
	server, worker, other := got.Nodes[0], got.Nodes[1], got.Nodes[2]
	if got.Waiting != nil || got.Plan != 3 || got.Slowest == nil || *got.Slowest != "worker 1" || !got.Recovers {
		t.Errorf("running: %+v", got)
	}
	if *worker.StepRate != 10 || *worker.RoundRate != 20 || *worker.WaitShare != 0.9 || *worker.Up != 8e6 || *worker.LinkUp != 8e6 || *worker.UseUp != 0.5 || worker.LinkDown != nil || worker.Waiting != nil {
		t.Errorf("worker 0: %+v", worker)
	}
	if *worker.Warning != (Warning{"odd", 3}) || other.Waiting.For != "key 1 round 4" || *other.Waiting.Seconds != 3 {
		t.Errorf("worker 0 %+v, worker 1 %+v", worker.Warning, other.Waiting)
	}
	if server.StepRate != nil || server.WaitShare != nil || *server.Up != 16e6 || *server.Share != 1./3 {
		t.Errorf("server 0: %+v", server)
	}
	s.report(w1, Progress{At: 3 * time.Second, Rounds: 60})
	s.now = s.now.Add(3 * time.Second)
	if nodes := status().Nodes; nodes[1].State != "silent" || nodes[1].StepRate != nil || nodes[1].Steps != 10 || nodes[2].State != "running" {
		t.Errorf("worker 0 after 5 s: %+v; worker 1 is %s", nodes[1], nodes[2].State)
	}
	s.command("gone s0")
	if got := status(); len(got.Nodes) != 2 || len(got.Deaths) != 1 || got.Deaths[0] != (Death{"server 0", "its connection was closed", unix(s.now)}) {
		t.Errorf("after a death: %+v", got)
	}
	if len(s.scheduler.progress) != 2 {
		t.Errorf("reports of %d nodes are kept", len(s.scheduler.progress))
	}
}

// TestAnswers: the same answer serves all for a while, and nobody gets one with another secret.
func TestAnswers(t *testing.T) {
	s := &script{t: t, now: time.Unix(1000, 0), start: time.Unix(1000, 0)}
	s.command("cluster workers=1 servers=0 secret=open")
	ask := func(secret string) *pspb.Meta {
		m := &pspb.Meta{Own: &pspb.Meta_StatusAsk{StatusAsk: &pspb.StatusAsk{Secret: &secret}}}
		actions := s.scheduler.Step(s.now, 0, "", m)
		if len(actions) != 1 {
			t.Fatalf("%v", actions)
		}
		return actions[0].(Answer).Meta
	}
	at := func() (answer Status) {
		text, err := unpack(ask("open").GetStatus().GetJson())
		if err == nil {
			err = json.Unmarshal(text, &answer)
		}
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	if m := ask("sesame"); m.GetStatus() != nil || m.GetRefused().GetReason() == "" {
		t.Errorf("with another secret: %v", m)
	}
	first := at().Time
	s.now = s.now.Add(answerTime - 1)
	if got := at().Time; got != first {
		t.Errorf("the status was made again after %v", got-first)
	}
	s.now = s.now.Add(1)
	if got := at().Time; got != unix(s.now) {
		t.Errorf("the status of %v is told at %v", got, unix(s.now))
	}
	s.command("join worker w:1 secret=open")
	s.pass(time.Second)
	s.command("barrier w0")
	s.command("barrier w0")
	s.now = s.now.Add(time.Second)
	if got := at().State; got != "ended" {
		t.Errorf("a cluster that has ended is %q", got)
	}
}

// TestNodesReportEachSecond: also at their end, so that the last status has all that they have counted.
func TestNodesReportEachSecond(t *testing.T) {
	inBubble(t, 1, func(b *bench) {
		began := time.Now()
		var reports, rounds atomic.Uint64
		b.progress = func() Progress {
			reports.Add(1)
			return Progress{At: time.Since(began), Rounds: rounds.Load()}
		}
		workers, _ := b.start(1, 0)
		if err := awaitBarrier(workers[0], AllGroup); err != nil {
			t.Fatal(err)
		}
		before := reports.Load()
		time.Sleep(10 * time.Second)
		if got := reports.Load() - before; got != 10 {
			t.Errorf("%d reports in 10 s", got)
		}
		rounds.Store(7) // after the last of them
		ended := make(chan error)
		workers[0].End(wire.Rounds{}, func(err error) { ended <- err })
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := b.runner.Status().Nodes[0].Rounds; got != 7 {
			t.Errorf("%d rounds in the last status, not 7", got)
		}
	})
}

func TestStatusOverZMQ(t *testing.T) {
	r, all := zmqCluster(t, 2, 1)
	<-r.Joined()
	awaitAll(t, all, AllGroup)
	text, err := AskStatus("127.0.0.1", r.Port(), "", 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var got Status
	if err := json.Unmarshal(text, &got); err != nil || got.State != "running" || len(got.Nodes) != 3 || got.Strays != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = AskStatus("127.0.0.1", r.Port(), "wrong", 10*time.Second)
	wantError(t, err, fault.Config, "FPTPS_TOKEN")
	_, err = AskStatus("127.0.0.1", all[0].View().Me().Port, "", 100*time.Millisecond) // a worker
	wantError(t, err, fault.Connect, "has not answered within 100ms")
	r.Close()
	_, err = AskStatus("127.0.0.1", r.Port(), "", 10*time.Second)
	wantError(t, err, fault.Connect, "no scheduler can be reached")
}
