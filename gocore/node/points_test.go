package node

import (
	"fmt"
	"strings"
	"testing"

	"fptps/gocore/kv"
)

// TestPoints plays what a worker does and hears: its program comes (c) or arrives (a), the scheduler gathers (g), says where all meet (m with the
// point) or that newcomers are admitted (!). The result lists what the program is to do, what the worker answers, and whose ticket ends.
func TestPoints(t *testing.T) {
	for name, tc := range map[string]struct{ play, want string }{
		"nobody waits":                               {"c c c", "pass pass pass"},
		"all meet at the next":                       {"c c g m3 c a ! c", "pass pass 2 stand at3 admitted pass"},
		"another is ahead":                           {"c g m4 c c c a !", "pass 1 pass pass stand at4 admitted"},
		"the program comes before all have answered": {"c g c m2 c a !", "pass 1 wait waited stand at2 admitted"},
		"and does not meet there":                    {"c g c m3 c c a !", "pass 1 wait waited pass stand at3 admitted"},
		"it is called off":                           {"c g c m0 c c", "pass 1 wait waited pass pass"},
		"when the program stands":                    {"c g m2 c a m0 c", "pass 1 stand at2 departed pass"},
		"once more":                                  {"g m1 c a ! c g m3 c a !", "0 stand at1 admitted pass 2 stand at3 admitted"},
		"gathered anew before the meeting":           {"c g m3 g m4 c c c a !", "pass 1 1 pass pass stand at4 admitted"},
		"the first one":                              {"g m1 c a !", "0 stand at1 admitted"},
	} {
		t.Run(name, func(t *testing.T) {
			var p points
			var got []string
			tickets := kv.NewTickets()
			for _, step := range strings.Fields(tc.play) {
				switch step[0] {
				case 'c':
					switch p.come() {
					case pass:
						got = append(got, "pass")
					case stand:
						got = append(got, "stand")
					case wait:
						got = append(got, "wait")
						p.waiting = tickets.New(nil)
					}
				case 'a':
					got = append(got, fmt.Sprintf("at%d", p.arrive(tickets.New(nil))))
				case 'g':
					got = append(got, fmt.Sprint(p.gather()))
				case 'm':
					waited, stood := p.meetAt(uint64(step[1] - '0'))
					if waited != nil {
						got = append(got, "waited")
					}
					if stood != nil {
						got = append(got, "departed")
					}
				case '!':
					if p.admitted() != nil {
						got = append(got, "admitted")
					}
				}
			}
			if text := strings.Join(got, " "); text != tc.want {
				t.Errorf("%s: %q, expected %q", tc.play, text, tc.want)
			}
			if left := p.end(); len(left) != 0 {
				t.Errorf("%d tickets are left", len(left))
			}
		})
	}
}

// A node that ends ends the waits of its program.
func TestPointsEnd(t *testing.T) {
	tickets := kv.NewTickets()
	p := points{waiting: tickets.New(nil), arrived: tickets.New(nil)}
	if left := p.end(); len(left) != 2 || p.waiting != nil || p.arrived != nil {
		t.Errorf("%d tickets end, left %+v", len(left), p)
	}
}
