package van

import (
	"encoding/hex"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire/pspb"
)

// Messages of dmlc ps-lite, written by hand from its field numbers. A number of
// 32767 (ff ff 01) is its "empty".
var psLite = map[string]string{
	"ADD_NODE of a worker":  "08 ffff01  1a 1d 08 02  12 19 08 01 10 ffff01 1a 08 31302e302e302e37 20 c03e 28 00 50 00 50 00  20 00 28 00 30 00  50 00  58 00",
	"BARRIER of everyone":   "08 ffff01  1a 04 08 03 18 07  20 01 28 00 30 00 38 00 40 03 50 00 58 00 60 00 68 00",
	"HEARTBEAT of worker 0": "1a 19 08 05  12 15 08 01 10 09 1a 08 31302e302e302e37 20 c03e 28 00 50 00  40 05",
	"TERMINATE":             "1a 02 08 01",
	"a request with data":   "08 05 12 03 616263 20 01 28 01 38 00 40 07 4a 02 0809 50 00 58 c801 60 00 68 fdffffffffffffffff01",
}

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDecodesPsLite(t *testing.T) {
	want := map[string]*pspb.Meta{
		"ADD_NODE of a worker": {Head: proto.Int32(32767), Request: proto.Bool(false), Push: proto.Bool(false), SimpleApp: proto.Bool(false),
			CustomerId: proto.Int32(0), DataSize: proto.Int32(0),
			Control: &pspb.Control{Cmd: proto.Int32(pspb.AddNode), Node: []*pspb.Node{{Role: proto.Int32(1), Id: proto.Int32(32767),
				Hostname: proto.String("10.0.0.7"), Port: proto.Int32(8000), IsRecovery: proto.Bool(false), CustomerId: proto.Int32(0)}}}},
		"BARRIER of everyone": {Head: proto.Int32(32767), Request: proto.Bool(true), Push: proto.Bool(false), SimpleApp: proto.Bool(false),
			AppId: proto.Int32(0), Timestamp: proto.Int32(3), CustomerId: proto.Int32(0), DataSize: proto.Int32(0), Pull: proto.Bool(false), Priority: proto.Int32(0),
			Control: &pspb.Control{Cmd: proto.Int32(pspb.Barrier), BarrierGroup: proto.Int32(7)}},
		"HEARTBEAT of worker 0": {Timestamp: proto.Int32(5),
			Control: &pspb.Control{Cmd: proto.Int32(pspb.Heartbeat), Node: []*pspb.Node{{Role: proto.Int32(1), Id: proto.Int32(9),
				Hostname: proto.String("10.0.0.7"), Port: proto.Int32(8000), IsRecovery: proto.Bool(false), CustomerId: proto.Int32(0)}}}},
		"TERMINATE": {Control: &pspb.Control{Cmd: proto.Int32(pspb.Terminate)}},
		"a request with data": {Head: proto.Int32(5), Body: []byte("abc"), Request: proto.Bool(true), Push: proto.Bool(true), AppId: proto.Int32(0),
			Timestamp: proto.Int32(7), DataType: []int32{8, 9}, CustomerId: proto.Int32(0), DataSize: proto.Int32(200), Pull: proto.Bool(false), Priority: proto.Int32(-3)},
	}
	for name, text := range psLite {
		raw := unhex(t, text)
		e, err := Decode([]byte("ps9"), [][]byte{raw, []byte("data")})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !proto.Equal(e.Meta, want[name]) || e.From != 9 || len(e.Data) != 1 {
			t.Errorf("%s: %v from %d, want %v", name, e.Meta, e.From, want[name])
		}
		// Unknown fields are skipped, at any place.
		extra := append(unhex(t, "9a06 03 787878"), raw...)
		extra = append(extra, unhex(t, "c0fa25 01")...)
		if e, err := Decode(nil, [][]byte{extra}); err != nil || !proto.Equal(e.Meta, want[name]) {
			t.Errorf("%s with unknown fields: %v, %v", name, e, err)
		}
	}
}

func TestDecodeLimits(t *testing.T) {
	long, err := proto.Marshal(&pspb.Meta{Body: make([]byte, MaxMeta)})
	if err != nil {
		t.Fatal(err)
	}
	for name, frames := range map[string][][]byte{
		"no frame":               {},
		"too many frames":        make([][]byte, MaxFrames+1),
		"too long":               {long},
		"no cmd":                 {{0x1a, 0x00}},
		"no role":                {unhex(t, "1a 04 08 02 12 00")},
		"a wrong type":           {unhex(t, "0a 00 ff")},
		"a field number of zero": {{0x00, 0x00}},
		"cut short":              {{0x1a, 0x05, 0x08}},
	} {
		if e, err := Decode(nil, frames); err == nil {
			t.Errorf("%s: decoded to %v", name, e.Meta)
		}
	}
	if _, err := Decode(nil, make([][]byte, MaxFrames)); err != nil {
		t.Errorf("%d frames: %v", MaxFrames, err)
	}
}

// FuzzDecode: whatever the bytes, there is an error, or a message that survives
// being sent on.
func FuzzDecode(f *testing.F) {
	for _, text := range psLite {
		f.Add([]byte("ps9"), unhex(f, text), uint8(1))
	}
	for _, m := range []*pspb.Meta{
		{Token: make([]byte, 16), Own: &pspb.Meta_Waiting{Waiting: &pspb.Waiting{What: proto.String("join"), Missing: []string{"1 worker"}}}},
		{Own: &pspb.Meta_Disagreement{Disagreement: &pspb.Disagreement{Key: proto.Uint64(3), Part: []*pspb.Disagreement_Part{{Bytes: proto.Uint64(4), Rank: []uint32{0, 2}}}}}},
		{Own: &pspb.Meta_Join{Join: &pspb.Join{Secret: proto.String("x"), Workers: proto.Uint32(2)}}},
		{Own: &pspb.Meta_Lost{Lost: &pspb.Lost{Id: proto.Int32(9), Why: proto.String("gone")}}},
	} {
		b, err := Encode(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(""), b, uint8(3))
	}
	f.Fuzz(func(t *testing.T, identity, raw []byte, frames uint8) {
		all := make([][]byte, frames)
		if frames > 0 {
			all[0] = raw
		}
		e, err := Decode(identity, all)
		if err != nil {
			return
		}
		if e.From < 0 || e.From > 99999 || len(e.Data) != len(all)-1 || len(all) > MaxFrames {
			t.Errorf("from %d with %d of %d frames", e.From, len(e.Data), len(all))
		}
		again, err := Encode(e.Meta)
		if err != nil {
			t.Fatalf("decoded, but cannot be encoded: %v", err)
		}
		second, err := Decode(identity, [][]byte{again})
		if err != nil || !proto.Equal(second.Meta, e.Meta) {
			t.Errorf("decoded to %v, and again to %v, %v", e.Meta, second, err)
		}
	})
}
