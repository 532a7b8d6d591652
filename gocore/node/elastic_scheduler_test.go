package node

import (
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
	if c.random.IntN(2) == 0 {
		c.vans.Kill(c.sched)
	} else {
		c.vans.Isolate(c.sched)
	}
	c.absent = true
	dead, life := c.runner, c.lives
	absence := time.Duration(c.random.IntN(2000)) * time.Millisecond
	c.mu.Unlock()
	dead.Close()
	c.suspect(cluster.Member{ID: wire.SchedulerID, Incarnation: uint64(life)})
	c.members.Go(func() {
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
