package cluster

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"fptps/gocore/wire"
	"fptps/gocore/wire/pspb"
)

// With FPTPS_REPLICAS=1 each node has a backup with a replica of what it stores as an aggregator (kv/backup.go). The first one follows from the list of all nodes. Later
// each node chooses its own, and reports it when the backup has everything (BACKED_UP). The scheduler's verdict on a node names the backup: the heir.

// backups are what the scheduler knows of the backups.
type backups struct {
	of     map[int]int // by node: its backup, which has everything
	needed map[int]int // by node: the epoch in which it has inherited a store, which its backup needs too
}

func noBackups() backups { return backups{of: map[int]int{}, needed: map[int]int{}} }

func (b *backups) clone() backups { return backups{maps.Clone(b.of), maps.Clone(b.needed)} }

// encode and decode are for Known.
func (b *backups) encode() (list []*pspb.Known_Backup) {
	nodes := slices.Collect(maps.Keys(b.of))
	for node := range b.needed {
		if b.of[node] == 0 {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	for _, node := range nodes {
		list = append(list, &pspb.Known_Backup{Node: proto.Int32(int32(node)), Id: proto.Int32(int32(b.of[node])), Needed: proto.Uint32(uint32(b.needed[node]))})
	}
	return list
}

func (b *backups) decode(list []*pspb.Known_Backup) {
	for _, m := range list[:min(len(list), 2*wire.MaxWorkers)] {
		if node := int(m.GetNode()); m.GetId() != 0 {
			b.of[node] = int(m.GetId())
		}
		b.needed[int(m.GetNode())] = int(m.GetNeeded())
	}
}

// BackupFor chooses a node's backup: another node, if possible on another host, if possible of the same role, with the next higher id. 0: there is no other
// node.
func (v View) BackupFor(id int) int {
	me := v.Member(id)
	best, bestRank := 0, 0
	for _, m := range v.Members {
		if m.ID == id || m.Role == RoleScheduler || m.Newcomer {
			continue
		}
		rank := (m.ID - id + 1<<20) % (1 << 20) // those with higher ids first
		if m.Role != me.Role {
			rank += 1 << 20
		}
		if m.Host == me.Host {
			rank += 1 << 21
		}
		if best == 0 || rank < bestRank {
			best, bestRank = m.ID, rank
		}
	}
	return best
}

// beginBackups records the first backups.
func (s *Scheduler) beginBackups() {
	if s.view.Replicates {
		for _, id := range s.ids() {
			s.backups.of[id] = s.view.BackupFor(id)
		}
	}
}

// heir is the node that has all that another one has stored; 0: there is none.
func (s *Scheduler) heir(id int) int {
	if heir := s.backups.of[id]; s.members[heir] != nil {
		return heir
	}
	return 0
}

func (s *Scheduler) stepBackedUp(from *member, own *pspb.BackedUp) {
	id := int(own.GetId())
	if m := s.members[id]; m != nil && !m.Newcomer && id != from.ID && int(own.GetEpoch()) >= s.backups.needed[from.ID] {
		s.backups.of[from.ID] = id
		s.do(Backed{ID: from.ID, Backup: id})
		s.decide(&pspb.Meta{Own: &pspb.Meta_BackedUp{BackedUp: &pspb.BackedUp{Of: proto.Int32(int32(from.ID)), Id: own.Id}}}, nil)
	}
}

// bury forgets the backup of a dead node, and of the nodes whose backup it was. It forgets the heir's backup, too, which lacks what the heir has inherited.
func (b *backups) bury(id, heir, epoch int) {
	for node, backup := range b.of {
		if node == id || node == heir || backup == id {
			delete(b.of, node)
		}
	}
	delete(b.needed, id)
	b.needed[heir] = epoch
}

// inherits lists the nodes that get a dead one's share of the summing.
func inherits(heir int, others []int) []int {
	if heir != 0 {
		return []int{heir}
	}
	return slices.Clone(others)
}

// BackedUp reports that this node's backup has everything that the node had stored in an epoch.
func (p *Postoffice) BackedUp(id, epoch int) {
	own := &pspb.BackedUp{Id: proto.Int32(int32(id)), Epoch: proto.Uint32(uint32(epoch))}
	p.loop.do(func() {
		p.pending.backedUp = own
		p.send(backedUpMessage(own))
	})
}

func backedUpMessage(own *pspb.BackedUp) *pspb.Meta {
	return &pspb.Meta{Own: &pspb.Meta_BackedUp{BackedUp: own}}
}
