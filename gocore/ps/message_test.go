package ps

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/van"
	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The first frames of messages of a ps-lite program, written by hand from its field
// numbers: head, request, push, simple_app, app_id, timestamp, data_type, customer_id,
// data_size, pull, priority.
var psLite = map[string]string{
	"push":     "08 05 20 01 28 01 30 00 38 00 40 07 4a 03 08 09 03 50 02 58 1c 60 00 68 03",
	"pull":     "08 00 20 01 28 00 30 00 38 00 40 08 4a 02 08 09 50 02 58 08 60 01 68 00",
	"old pull": "08 00 20 01 28 00 30 00 38 00 40 08 4a 02 08 09 50 02 58 08",
	"pushed":   "08 05 20 00 28 01 30 00 38 00 40 07 50 02 58 00 60 00 68 00",
	"command":  "08 02 12 02 68 69 20 01 28 00 30 01 38 00 40 09 50 00 58 00 60 00 68 00",
}

func meta(t testing.TB, name string) *pspb.Meta {
	t.Helper()
	e, err := van.Decode([]byte("ps9"), [][]byte{unhex(t, psLite[name])})
	if err != nil {
		t.Fatal(err)
	}
	return e.Meta
}

var (
	twoKeys     = []byte{1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0}
	oneAndTwo   = []byte{1, 0, 0, 0, 2, 0, 0, 0}
	threeFloats = []byte{0, 0, 0x80, 0x3f, 0, 0, 0, 0x40, 0, 0, 0x40, 0x40} // 1, 2, 3
)

func TestMessagesOfPsLite(t *testing.T) {
	push, err := Parse(9, meta(t, "push"), [][]byte{twoKeys, threeFloats, oneAndTwo})
	if err != nil {
		t.Fatal(err)
	}
	if push.Head != 5 || !push.Request || !push.Push || push.Pull || push.Timestamp != 7 || push.Customer != 2 || push.Priority != 3 || push.Peer != 9 {
		t.Errorf("push: %+v", push)
	}
	if k := push.KVs; !slices.Equal(k.Keys, []uint64{1, 3}) || !bytes.Equal(k.Vals, threeFloats) || k.DType != wire.Float32 || !slices.Equal(k.Lens, []int32{1, 2}) {
		t.Errorf("push: %+v", k)
	}
	for _, name := range []string{"pull", "old pull"} {
		pull, err := Parse(9, meta(t, name), [][]byte{twoKeys, nil})
		if err != nil || !pull.Pull || pull.Push || len(pull.KVs.Keys) != 2 || pull.KVs.DType != wire.Float32 {
			t.Errorf("%s: %+v, %v", name, pull, err)
		}
	}
	if pushed, err := Parse(8, meta(t, "pushed"), nil); err != nil || pushed.Request || !pushed.Push {
		t.Errorf("pushed: %+v, %v", pushed, err)
	}
	if command, err := Parse(9, meta(t, "command"), nil); err != nil || !command.Simple || string(command.Body) != "hi" || command.Head != 2 {
		t.Errorf("command: %+v, %v", command, err)
	}
}

func TestInvalidMessages(t *testing.T) {
	for name, c := range map[string]struct {
		meta   string
		frames [][]byte
		says   string
	}{
		"no data":                  {"push", nil, "without its data frames"},
		"a pull of nothing":        {"pull", nil, "without its data frames"},
		"keys only":                {"push", [][]byte{twoKeys}, "no frame of values"},
		"four frames":              {"push", [][]byte{twoKeys, threeFloats, oneAndTwo, nil}, "4 data frames"},
		"half a key":               {"push", [][]byte{twoKeys[:12], threeFloats}, "8 each"},
		"half a length":            {"push", [][]byte{twoKeys, threeFloats, oneAndTwo[:6]}, "4 each"},
		"half a value":             {"push", [][]byte{twoKeys, threeFloats[:10], oneAndTwo}, "float32"},
		"a length too few":         {"push", [][]byte{twoKeys, threeFloats, oneAndTwo[:4]}, "1 lens for 2 keys"},
		"lens that do not add up":  {"push", [][]byte{twoKeys, threeFloats[:8], oneAndTwo}, "add up to 3"},
		"a negative length":        {"push", [][]byte{twoKeys, threeFloats[:4], unhex(t, "ffffffff 02000000")}, "length of -1"},
		"values that do not share": {"push", [][]byte{twoKeys, threeFloats}, "3 values for 2 keys"},
		"no values":                {"push", [][]byte{twoKeys, nil}, "0 values for 2 keys"},
		"values without keys":      {"push", [][]byte{nil, threeFloats}, "without keys"},
		"keys that descend":        {"pull", [][]byte{append(slices.Clone(twoKeys[8:]), twoKeys[:8]...), nil}, "ascending"},
		"a key twice":              {"pull", [][]byte{append(slices.Clone(twoKeys[:8]), twoKeys[:8]...), nil}, "each once"},
		"values in a pull":         {"pull", [][]byte{twoKeys, threeFloats[:8]}, "where none belong"},
	} {
		m, err := Parse(9, meta(t, c.meta), c.frames)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %+v, %v; want an error that says %q", name, m, err, c.says)
		}
		if m == nil {
			t.Errorf("%s: the sender is not known", name)
		}
	}
	if m, err := Parse(9, &pspb.Meta{AppId: proto.Int32(1)}, nil); err == nil || m != nil {
		t.Error("a message without a timestamp was accepted")
	}
}

// every holds one message of each kind.
var every = []*Message{
	{Peer: 9, App: 1, Customer: 2, Timestamp: 3, Head: -4, Request: true, Push: true, Priority: -5, KVs: KVs{Keys: []uint64{1, 1 << 63}, Vals: make([]byte, 16), DType: wire.Complex64}},
	{Peer: 8, Timestamp: 3, Pull: true, KVs: KVs{Keys: []uint64{1, 2}, Vals: make([]byte, 6), DType: wire.Float16, Lens: []int32{3, 0}}},
	{Peer: 8, Request: true, Push: true, Pull: true, KVs: KVs{Keys: []uint64{7}, Vals: make([]byte, 32), DType: wire.LongDouble}},
	{Peer: 1, Request: true, Simple: true, Head: 6, Body: []byte("body")},
	{Peer: 10, Push: true, Failure: "no such key"},
}

func TestOwnMessages(t *testing.T) {
	for _, m := range every {
		meta, frames := m.Encode()
		first, err := van.Encode(meta)
		if err != nil {
			t.Fatal(err)
		}
		e, err := van.Decode(nil, append([][]byte{first}, frames...))
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse(m.Peer, e.Meta, e.Data)
		if err != nil || !same(got, m) {
			t.Errorf("%+v became %+v, %v", m, got, err)
		}
	}
}

func same(a, b *Message) bool {
	x, y := *a, *b
	x.KVs, y.KVs, x.Body, y.Body = KVs{}, KVs{}, nil, nil
	return string(a.Body) == string(b.Body) && x.Failure == y.Failure && x.Timestamp == y.Timestamp && x.Peer == y.Peer &&
		x.App == y.App && x.Customer == y.Customer && x.Head == y.Head && x.Request == y.Request && x.Simple == y.Simple &&
		x.Push == y.Push && (x.Pull == y.Pull || x.Simple) && x.Priority == y.Priority && slices.Equal(a.KVs.Keys, b.KVs.Keys) &&
		bytes.Equal(a.KVs.Vals, b.KVs.Vals) && a.KVs.DType == b.KVs.DType && slices.Equal(a.KVs.Lens, b.KVs.Lens)
}

// Parse returns an error, or a message whose lengths match its values and which is equal
// after encoding and parsing again.
func FuzzParse(f *testing.F) {
	for name := range psLite {
		f.Add(unhex(f, psLite[name]), twoKeys, threeFloats, oneAndTwo, uint8(3))
	}
	for _, m := range every {
		meta, frames := m.Encode()
		first, err := van.Encode(meta)
		if err != nil {
			f.Fatal(err)
		}
		frames = append(frames, nil, nil, nil)
		f.Add(first, frames[0], frames[1], frames[2], uint8(len(frames)-3))
	}
	f.Fuzz(func(t *testing.T, first, keys, values, lens []byte, count uint8) {
		e, err := van.Decode([]byte("ps9"), append([][]byte{first}, [][]byte{keys, values, lens, nil}[:min(count, 4)]...))
		if err != nil {
			return
		}
		m, err := Parse(e.From, e.Meta, e.Data)
		if err != nil {
			return
		}
		if m.carries() && m.Failure == "" && !m.Simple {
			total := 0
			for i := range m.KVs.Keys {
				total += m.KVs.length(i) * m.KVs.DType.Size()
			}
			if total != len(m.KVs.Vals) {
				t.Errorf("values of %d bytes, and lengths of %d", len(m.KVs.Vals), total)
			}
		}
		if len(m.KVs.Keys) == 0 || !m.KVs.DType.Valid() {
			return
		}
		meta, frames := m.Encode()
		again, err := Parse(m.Peer, meta, frames)
		if err != nil || !same(m, again) {
			t.Errorf("%+v became %+v, %v", m, again, err)
		}
	})
}
