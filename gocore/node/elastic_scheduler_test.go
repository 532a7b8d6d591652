package node

import (
	"fmt"
	"strings"
	"time"

	"fptps/gocore/cluster"
	"fptps/gocore/wire"
)

// serve starts a scheduler.
func (c *company) serve() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lives++
	config := c.config
	config.Role, config.Incarnation = cluster.RoleScheduler, uint64(c.lives)
	c.sched = c.vans.Van("sched")
	runner, err := cluster.Serve(c.sched, config, cluster.Events{})
	if err != nil {
		c.t.Fatal(err)
	}
	c.runner, c.absent = runner, false
	c.trace = append(c.trace, fmt.Sprintf("%v scheduler %d is there", time.Since(c.begin), c.lives))
}

// replaceScheduler kills the scheduler, and starts another one a while later, if all nodes of the start have met. Of what it has sent, all arrives or only the
// beginning.
func (c *company) replaceScheduler() {
	c.mu.Lock()
	for _, a := range c.actors {
		if !a.began && !a.dead && a.number <= c.config.Workers+c.config.Servers {
			c.mu.Unlock()
			return
		}
	}
	if c.over || c.absent {
		c.mu.Unlock()
		return
	}
	last := 0
	switch c.random.IntN(3) {
	case 0:
		c.vans.Kill(c.sched)
	case 1:
		c.vans.Isolate(c.sched)
	default: // in the middle of what it does next
		c.vans.KillAfter(c.sched, c.random.IntN(25))
		last = 100
	}
	c.absent = true
	dead, sched, life := c.runner, c.sched, c.lives
	absence := time.Duration(c.random.IntN(2000)) * time.Millisecond
	c.mu.Unlock()
	c.members.Go(func() {
		c.pause(last)
		c.vans.Isolate(sched)
		dead.Close()
		c.mu.Lock()
		c.trace = append(c.trace, fmt.Sprintf("%v scheduler %d is dead", time.Since(c.begin), life))
		c.mu.Unlock()
		c.suspect(cluster.Member{ID: wire.SchedulerID, Incarnation: uint64(life)})
		time.Sleep(absence)
		c.serve()
	})
}

// suspect has all nodes notice that their connections with a process have ended.
func (c *company) suspect(m cluster.Member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.actors {
		c.members.Go(func() {
			c.pause(20)
			select {
			case <-a.ready:
				if !a.isDead() {
					a.post.Suspect(m.ID, m.Incarnation, "its connection has ended")
				}
			default: // it has none
			}
		})
	}
}

// isAnother reports whether the last scheduler has made a cluster of nodes that came when the one before had ended.
func (c *company) isAnother(runner *cluster.Runner) bool {
	return c.lives > 1 && runner.View().Member(wire.WorkerID(0)).Incarnation > uint64(100+c.config.Workers+c.config.Servers)
}

// isAfterEnd reports whether a scheduler has met nodes alone that had not heard of the end of their cluster, as the one before was killed then.
func (c *company) isAfterEnd(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over && c.lives > 1 && strings.Contains(err.Error(), "It was the last worker")
}
