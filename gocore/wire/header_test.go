package wire

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// real is one header of each kind that nodes send, all fields distinct.
func real() []Header {
	return []Header{
		{Kind: Contrib, DType: Float32, Tensor: 1, Packet: 2, Run: 1, Round: 3 << 40, Ahead: MaxAhead, Policy: Bounded(4), Priority: -7, RawLen: 1024, WireLen: 1024, Sent: 5 << 20, Waited: 6 << 20, Queue: 7 << 10, Uplink: 8 << 10, Plan: 9 << 10, Epoch: 10 << 10, Received: 11 << 20},
		{Kind: Contrib, Flags: FlagLast, DType: Float64, Op: OpMean, Tensor: MaxTensors - 1, Packet: MaxTensorBytes/PacketBytes - 1, Run: 1, Round: 9, Priority: math.MaxInt32, RawLen: PacketBytes, WireLen: PacketBytes},
		{Kind: Sum, Flags: FlagClash, DType: Bool, Op: OpMean, Tensor: 10, Run: 1, Round: 11, Priority: math.MinInt32, Contributors: 12, RawLen: 13, WireLen: 13},
		{Kind: Sum, DType: BFloat16, Tensor: 14, Run: 1, Round: 15, Contributors: 16, RawLen: 18},
		{Kind: Empty, DType: LongDouble, Tensor: 19, Packet: 20, Run: 21, Round: 22, RawLen: 32},
		{Kind: Missing, Tensor: 23, Run: 1, Round: 24, RawLen: 8, WireLen: 8},
		{Kind: Goodbye},
		{Kind: Contrib, Flags: FlagLearningRate, DType: Float32, Tensor: 25, Run: 1, Round: 26, Policy: Bounded(3), RawLen: 4, WireLen: 4, LearningRate: 0.1},
		{Kind: Empty, Flags: FlagLearningRate, DType: Float64, Tensor: 27, Run: 28, Round: 29, Policy: Async, RawLen: 8},
		{Kind: Ask, Op: AskRule, Tensor: 25, Packet: 26, Run: 1, Number: 27, Priority: 28, RawLen: 29, WireLen: 29},
		{Kind: Ask, Op: AskRule, Tensor: 35, Packet: 36, Run: 1, Number: 37, Part: 38, RawLen: PacketBytes},
		{Kind: Answer, Op: AskRule, Tensor: 30, Packet: 31, Run: 1, Number: 32},
		{Kind: Answer, Op: AskRule, Flags: FlagRefused, Tensor: 33, Run: 1, Number: 34, RawLen: MaxReason, WireLen: MaxReason},
		{Kind: Part, Packet: 25, Run: 1, Number: 26, Ahead: 1, Priority: 27, RawLen: 28, WireLen: 28},
		{Kind: Probe, Run: 1, RawLen: PacketBytes, WireLen: PacketBytes, Sent: 29, Waited: 30, Queue: 31, Uplink: 32},
		{Kind: Want, Tensor: 33, Packet: 34, Run: 35, Round: 36, Priority: 37},
		{Kind: Have, Tensor: 38, Packet: 39, Run: MaxRun, Round: 40, Priority: 41},
		{Kind: Recall, Tensor: 42, Packet: 43, Run: 1, Round: 44, Priority: 45},
		{Kind: Kept, Epoch: 56, DType: Float32, Tensor: 46, Packet: 47, Run: 1, Round: 48, Priority: 49, RawLen: 52, WireLen: 52},
		{Kind: Kept, Flags: FlagClash, DType: Int8, Tensor: 53, Run: 1, Round: 54, RawLen: 55},
		{Kind: Ack, Received: math.MaxUint32},
	}
}

func encode(h Header) []byte {
	b := make([]byte, HeaderBytes)
	h.Put(b)
	return b
}

func TestHeaderComesBack(t *testing.T) {
	for _, h := range real() {
		var back Header
		if err := back.Get(encode(h)); err != nil || back != h {
			t.Errorf("%+v came back as %+v, error %v", h, back, err)
		}
	}
}

// The layout is a promise to every other build of this version. Fields of different kinds share bytes.
func TestHeaderLayout(t *testing.T) {
	h := Header{Flags: 2, DType: 3, Op: 4, Codec: 5, Tensor: 0x0d0c0b0a, Packet: 0x1d1c1b1a, Run: 0x2d2c2b2a,
		Round: 0x4847464544434241, Number: 0x5857565554535251, Priority: 0x7d7c7b7a,
		Contributors: 0x8281, Policy: 0x8483, Part: 0x8685, Ahead: 0x9291, RawLen: 0x9b9a, WireLen: 0xabaa, LearningRate: 1,
		Sent: 0xb4b3b2b1, Waited: 0xb8b7b6b5, Queue: 0xbab9, Plan: 0xbcbb, Uplink: 0x9d9c, Epoch: 0xafae, Received: 0xc4c3c2c1}
	for kind, own := range map[Kind]struct{ number, detail string }{
		Contrib: {"ABCDEFGH", "\x83\x84"}, Empty: {"ABCDEFGH", "\x83\x84"}, Sum: {"ABCDEFGH", "\x81\x82"}, Missing: {"ABCDEFGH", "\x81\x82"},
		Ask: {"QRSTUVWX", "\x85\x86"}, Answer: {"QRSTUVWX", "\x85\x86"}, Part: {"QRSTUVWX", "\x85\x86"},
	} {
		h.Kind = kind
		want := "FP\x01" + string(rune(kind)) + "\x02\x03\x04\x05" + "\x0a\x0b\x0c\x0d" + "\x1a\x1b\x1c\x1d" + "\x2a\x2b\x2c\x2d" + "\xb1\xb2\xb3\xb4" +
			own.number + "\xb5\xb6\xb7\xb8\xb9\xba\xbb\xbc" + "\x7a\x7b\x7c\x7d" + own.detail + "\x91\x92" +
			"\x9a\x9b\x9c\x9d" + "\xaa\xab\xae\xaf"
		if got := string(encode(h)[:60]); got != want+"\xc1\xc2\xc3\xc4" {
			t.Errorf("kind %d: layout\n%x, expected\n%x", kind, got, want+"\xc1\xc2\xc3\xc4")
		}
		rated := h
		rated.Flags = FlagLearningRate
		if got := string(encode(rated)[56:60]); got != "\x00\x00\x80\x3f" {
			t.Errorf("kind %d: learning rate as %x", kind, got)
		}
	}
}

func TestEveryFlippedBitIsRefused(t *testing.T) {
	for _, h := range real() {
		for bit := range HeaderBytes * 8 {
			b := encode(h)
			b[bit/8] ^= 1 << (bit % 8)
			var back Header
			if back.Get(b) == nil {
				t.Errorf("%+v: accepted with bit %d of byte %d flipped", h, bit%8, bit/8)
			}
		}
	}
}

// Each of these has a right checksum: some program could send it, no node does.
func TestInvalidHeadersAreRefused(t *testing.T) {
	contrib, sum, empty, missing, goodbye, rated := real()[0], real()[2], real()[4], real()[5], real()[6], real()[7]
	ask, answer, refusal, part, probe := real()[9], real()[11], real()[12], real()[13], real()[14]
	have, kept := real()[16], real()[18]
	for name, tc := range map[string]struct {
		h      Header
		change func(*Header)
		says   string
	}{
		"kind 0":               {contrib, func(h *Header) { h.Kind = 0 }, "kind"},
		"kind beyond":          {contrib, func(h *Header) { h.Kind = kindEnd }, "kind"},
		"sum with a plan":      {sum, func(h *Header) { h.Plan = 1 }, "plan"},
		"ask with a plan":      {ask, func(h *Header) { h.Plan = 1 }, "plan"},
		"ask with an epoch":    {ask, func(h *Header) { h.Epoch = 1 }, "epoch"},
		"part with an epoch":   {part, func(h *Header) { h.Epoch = 1 }, "epoch"},
		"ahead beyond":         {contrib, func(h *Header) { h.Ahead = MaxAhead + 1 }, "announces"},
		"empty ahead":          {empty, func(h *Header) { h.Ahead = 1 }, "announces"},
		"zero sum ahead":       {real()[3], func(h *Header) { h.Ahead = 1 }, "announces"},
		"ahead out of range":   {real()[1], func(h *Header) { h.Ahead = 1 }, "range"},
		"flag beyond":          {contrib, func(h *Header) { h.Flags = flagEnd }, "flags"},
		"operation":            {contrib, func(h *Header) { h.Op = opEnd }, "operation"},
		"codec":                {contrib, func(h *Header) { h.Codec = codecEnd }, "codec"},
		"raw beyond a packet":  {contrib, func(h *Header) { h.RawLen = PacketBytes + 4 }, "at most"},
		"wire beyond a packet": {contrib, func(h *Header) { h.WireLen = PacketBytes + 4 }, "at most"},
		"wire of 4 GB":         {contrib, func(h *Header) { h.WireLen = math.MaxUint32 }, "at most"},
		"dtype 0":              {contrib, func(h *Header) { h.DType = 0 }, "dtype"},
		"dtype beyond":         {contrib, func(h *Header) { h.DType = dtypeEnd }, "dtype"},
		"part of an element":   {contrib, func(h *Header) { h.RawLen, h.WireLen = 1023, 1023 }, "1023"},
		"no elements":          {contrib, func(h *Header) { h.RawLen, h.WireLen = 0, 0 }, "0 bytes"},
		"contribution, hollow": {contrib, func(h *Header) { h.WireLen = 0 }, "on the wire"},
		"contribution, run":    {contrib, func(h *Header) { h.Run = 2 }, "run 2"},
		"sum, other length":    {sum, func(h *Header) { h.WireLen = 12 }, "on the wire"},
		"sum, run 0":           {sum, func(h *Header) { h.Run = 0 }, "run 0"},
		"empty, payload":       {empty, func(h *Header) { h.WireLen = 32 }, "empty"},
		"empty, run 0":         {empty, func(h *Header) { h.Run = 0 }, "empty"},
		"empty, dtype":         {empty, func(h *Header) { h.DType = 99 }, "empty"},
		"empty, run beyond":    {empty, func(h *Header) { h.Run = MaxRun + 1 }, "empty"},
		"empty, run over":      {empty, func(h *Header) { h.Packet, h.Run = MaxTensorBytes/PacketBytes-1, 2 }, "range"},
		"missing nobody":       {missing, func(h *Header) { h.RawLen, h.WireLen = 0, 0 }, "missing"},
		"missing part":         {missing, func(h *Header) { h.RawLen, h.WireLen = 7, 7 }, "missing"},
		"missing, raw":         {missing, func(h *Header) { h.RawLen = 4 }, "missing"},
		"have, payload":        {have, func(h *Header) { h.RawLen, h.WireLen = 4, 4 }, "4 bytes"},
		"have, dtype":          {have, func(h *Header) { h.DType = Float32 }, "about"},
		"have, run 0":          {have, func(h *Header) { h.Run = 0 }, "0 packets"},
		"have, run beyond":     {have, func(h *Header) { h.Run = MaxRun + 1 }, "about"},
		"have, run over":       {have, func(h *Header) { h.Packet, h.Run = MaxTensorBytes/PacketBytes-1, 2 }, "range"},
		"kept, run":            {kept, func(h *Header) { h.Run = 2 }, "run 2"},
		"kept, other length":   {kept, func(h *Header) { h.WireLen = 48 }, "on the wire"},
		"kept, rows":           {kept, func(h *Header) { h.Codec = CodecRows }, "rows"},
		"kept ahead":           {kept, func(h *Header) { h.Ahead = 1 }, "announces"},
		"goodbye, payload":     {goodbye, func(h *Header) { h.WireLen = 1 }, "goodbye"},
		"ack, payload":         {real()[20], func(h *Header) { h.WireLen = 1 }, "acknowledgement"},
		"ack with a rate":      {real()[20], func(h *Header) { h.Flags = FlagLearningRate }, "learning rate"},
		"ask to sum":           {ask, func(h *Header) { h.Op = OpSum }, "operation"},
		"ask beyond":           {ask, func(h *Header) { h.Op = askEnd }, "operation"},
		"sum by asking":        {contrib, func(h *Header) { h.Op = AskRule }, "operation"},
		"ask with a flag":      {ask, func(h *Header) { h.Flags = FlagClash }, "flags"},
		"ask refused":          {ask, func(h *Header) { h.Flags = FlagRefused }, "flags"},
		"answer with a flag":   {answer, func(h *Header) { h.Flags = FlagLast }, "flags"},
		"ask over many":        {ask, func(h *Header) { h.Run = 2 }, "run 2"},
		"answer with a dtype":  {answer, func(h *Header) { h.DType = Float32 }, "dtype 12"},
		"ask, other length":    {ask, func(h *Header) { h.RawLen = 28 }, "on the wire"},
		"ask ahead":            {ask, func(h *Header) { h.Ahead = 1 }, "announces"},
		"ask beyond a packet":  {ask, func(h *Header) { h.RawLen, h.WireLen = PacketBytes+1, PacketBytes+1 }, "at most"},
		"refusal without why":  {refusal, func(h *Header) { h.RawLen, h.WireLen = 0, 0 }, "refusal"},
		"refusal too long":     {refusal, func(h *Header) { h.RawLen, h.WireLen = MaxReason+1, MaxReason+1 }, "refusal"},
		"policy beyond":        {contrib, func(h *Header) { h.Policy = MaxDelay + 2 }, "consistency"},
		"policy unknown":       {empty, func(h *Header) { h.Policy = Ordered - 1 }, "consistency"},
		"negative rate":        {rated, func(h *Header) { h.LearningRate = -1 }, "learning rate"},
		"rate not a number":    {rated, func(h *Header) { h.LearningRate = float32(math.NaN()) }, "learning rate"},
		"infinite rate":        {rated, func(h *Header) { h.LearningRate = float32(math.Inf(1)) }, "learning rate"},
		"sum with a rate":      {sum, func(h *Header) { h.Flags, h.LearningRate = FlagLearningRate, 1 }, "learning rate"},
		"goodbye with a rate":  {goodbye, func(h *Header) { h.Flags = FlagLearningRate }, "learning rate"},
		"part, hollow":         {part, func(h *Header) { h.RawLen, h.WireLen = 0, 0 }, "part"},
		"part, raw":            {part, func(h *Header) { h.RawLen = 4 }, "part"},
		"part, run":            {part, func(h *Header) { h.Run = 2 }, "part"},
		"first part ahead":     {part, func(h *Header) { h.Packet = 0 }, "announces"},
		"probe, hollow":        {probe, func(h *Header) { h.RawLen, h.WireLen = 0, 0 }, "probe"},
		"probe, raw":           {probe, func(h *Header) { h.RawLen = 4 }, "probe"},
		"probe, run":           {probe, func(h *Header) { h.Run = 0 }, "probe"},
		"probe, dtype":         {probe, func(h *Header) { h.DType = Float32 }, "probe"},
		"probe, wire beyond":   {probe, func(h *Header) { h.WireLen = PacketBytes + 1 }, "at most"},
		"probe ahead":          {probe, func(h *Header) { h.Ahead = 1 }, "announces"},
		"probe with a plan":    {probe, func(h *Header) { h.Plan = 1 }, "plan"},
		"tensor beyond":        {contrib, func(h *Header) { h.Tensor = MaxTensors }, "range"},
		"packet beyond":        {contrib, func(h *Header) { h.Packet = MaxTensorBytes / PacketBytes }, "range"},
		"packet wraps":         {contrib, func(h *Header) { h.Packet = math.MaxUint32 }, "range"},
	} {
		h := tc.h
		tc.change(&h)
		var back Header
		err := back.Get(encode(h))
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: error %v, expected one about %q", name, err, tc.says)
		}
	}
}

func TestOtherVersionIsNamed(t *testing.T) {
	b := encode(real()[0])
	b[2] = version + 1
	var h Header
	if err := h.Get(b); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("error %v", err)
	}
}

func TestHeaderAllocatesNothing(t *testing.T) {
	h, b := real()[0], make([]byte, HeaderBytes)
	n := testing.AllocsPerRun(100, func() {
		h.Put(b)
		if err := h.Get(b); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestPackets(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	sizes := []uint64{0, 1, PacketBytes - 1, PacketBytes, PacketBytes + 1, MaxTensorBytes - 1, MaxTensorBytes}
	for range 1000 {
		sizes = append(sizes, rng.Uint64N(1<<rng.UintN(41)))
	}
	for _, size := range sizes {
		n := Packets(size)
		if uint64(n)*PacketBytes < size || n > 0 && uint64(n-1)*PacketBytes >= size {
			t.Errorf("%d bytes are %d packets", size, n)
		}
		if n > 0 && uint64(n-1)*PacketBytes+uint64(PacketLen(size, n-1)) != size {
			t.Errorf("last packet of %d bytes has %d", size, PacketLen(size, n-1))
		}
	}
}

// mend gives arbitrary bytes the checksum that lets them reach the checks behind it.
func mend(b []byte, at int) {
	binary.LittleEndian.PutUint32(b[at:], crc32.Checksum(b[:at], castagnoli))
}

func FuzzHeader(f *testing.F) {
	for _, h := range real() {
		f.Add(encode(h), true)
		f.Add(encode(h), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, whole bool) {
		b := make([]byte, HeaderBytes)
		copy(b, data)
		if whole {
			b[0], b[1], b[2] = 'F', 'P', version
			mend(b, 60)
		}
		var h, back Header
		if h.Get(b) != nil {
			return
		}
		if h.WireLen > PacketBytes || h.RawLen > PacketBytes || h.Kind == Contrib && int(h.RawLen)%h.DType.Size() != 0 {
			t.Errorf("accepted %+v", h)
		}
		if !h.Policy.Valid() && (h.Kind == Contrib || h.Kind == Empty) || !GoodLearningRate(float64(h.LearningRate)) {
			t.Errorf("accepted %+v", h)
		}
		if uint64(h.Packet)+uint64(h.Run) > MaxTensorBytes/PacketBytes || h.Tensor >= MaxTensors {
			t.Errorf("accepted a packet out of range: %+v", h)
		}
		if err := back.Get(encode(h)); err != nil || back != h {
			t.Errorf("%+v came back as %+v, error %v", h, back, err)
		}
	})
}
