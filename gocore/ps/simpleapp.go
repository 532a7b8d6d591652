package ps

import (
	"slices"

	"fptps/gocore/fault"
)

// SimpleApp is a customer whose requests and answers are a number and any bytes.
type SimpleApp struct{ *Customer }

// Request sends a number and any bytes to all nodes of a group, or to one node by its id.
func (a SimpleApp) Request(head int32, body []byte, to int) (int32, error) {
	ids := a.office.group(to)
	if len(ids) == 0 {
		return 0, fault.New(fault.Value, "there is no node or group %d here", to)
	}
	slices.Sort(ids)
	asked := map[int][]uint64{}
	for _, id := range ids {
		asked[id] = nil
	}
	ts, err := a.start(false, asked, Completion{}, 0)
	if err != nil {
		return 0, err
	}
	for _, id := range ids {
		a.send(&Message{Peer: id, App: a.App, Customer: a.ID, Timestamp: ts, Head: head, Body: body, Request: true, Simple: true})
	}
	return ts, nil
}

// Response answers a request; it uses only the fields of to that identify the request.
func (a SimpleApp) Response(to *Message, body []byte) error {
	answer := answerTo(to)
	answer.Body = body
	return a.answer(answer)
}
