package ps

import "fptps/gocore/fault"

// KVServer is a customer that answers pushes and pulls.
type KVServer struct{ *Customer }

// Response answers a request. Of to only what names it is used: values are the answer's,
// and not used beyond the return.
func (s KVServer) Response(to *Message, k KVs) error { return s.lend(to, k, nil) }

// lend is Response, with values that are used until done is called.
func (s KVServer) lend(to *Message, k KVs, done func()) error {
	if err := k.check(len(k.Keys) > 0); err != nil {
		return fault.New(fault.Value, "%v", err)
	}
	answer := answerTo(to)
	answer.KVs, answer.done = k, done
	return s.answer(answer)
}
