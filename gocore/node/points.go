package node

import "fptps/gocore/kv"

// points counts how often this node's program has come to the place where newcomers may be admitted: see cluster/admission.go. Pure, but
// for the tickets, which the caller finishes.
type points struct {
	passed  uint64
	asked   bool       // the scheduler was told passed, and has not said when all meet: the program waits at the next point
	meet    uint64     // the point at which all meet; 0: none is known
	waiting *kv.Ticket // of a program that waits for meet; nil: none does
	arrived *kv.Ticket // of a program that waits at meet until newcomers are admitted; nil: none does
}

// The results of come.
const (
	pass  = iota // nobody waits to be admitted
	wait         // until the scheduler has said whether all meet here
	stand        // all meet here
)

// come is called when the program comes to a point.
func (p *points) come() int {
	switch {
	case p.asked:
		return wait
	case p.meet == p.passed+1:
		return stand
	}
	p.passed++
	return pass
}

// gather answers the scheduler how often the program has passed.
func (p *points) gather() uint64 {
	p.asked, p.meet = true, 0
	return p.passed
}

// meetAt is the scheduler's decision; 0: there is no admission. It returns the tickets that end with it: waited if the program waits for the
// decision, and stood if it stands where nobody is admitted now.
func (p *points) meetAt(point uint64) (waited, stood *kv.Ticket) {
	waited, p.waiting = p.waiting, nil
	p.asked, p.meet = false, point
	if point == 0 {
		stood, p.arrived = p.arrived, nil
	}
	return waited, stood
}

// arrive is called when the program stands at the point where all meet; the ticket ends when newcomers are admitted.
func (p *points) arrive(ticket *kv.Ticket) (point uint64) {
	point, p.meet, p.arrived = p.meet, 0, ticket
	p.passed = max(p.passed, point)
	return point
}

// end returns the tickets of a program that waits, as the node ends.
func (p *points) end() (tickets []*kv.Ticket) {
	for _, ticket := range []*kv.Ticket{p.waiting, p.arrived} {
		if ticket != nil {
			tickets = append(tickets, ticket)
		}
	}
	p.waiting, p.arrived = nil, nil
	return tickets
}

// admitted returns the ticket of the program that stands, which ends now; nil if there is none.
func (p *points) admitted() (stood *kv.Ticket) {
	stood, p.arrived = p.arrived, nil
	return stood
}
