package ps

import "fptps/gocore/fault"

// KVServer is a customer that answers pushes and pulls.
type KVServer struct{ *Customer }

// Response answers a request; it uses only the fields of to that identify the request.
// k holds the values of the answer; they are not used after the return.
func (s KVServer) Response(to *Message, k KVs) error { return s.respond(to, k, nil) }

// respond is Response, but the values are used until done is called.
func (s KVServer) respond(to *Message, k KVs, done func()) error {
	if err := k.validate(len(k.Keys) > 0); err != nil {
		return fault.New(fault.Value, "%v", err)
	}
	answer := answerTo(to)
	answer.KVs, answer.done = k, done
	return s.answer(answer)
}
