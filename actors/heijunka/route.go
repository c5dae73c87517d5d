package heijunka

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"
)

// spill is the utilisation above which a request goes to the least loaded pool of the
// list instead of the preferred one, because scaling is too slow for it.
const spill = 0.85

// route chooses the pool of one of p's requests. It is the pool of the affinity group
// that key hashes to, unless that is above spill and another one of the list has less
// demand.
func (p *Pool) route(key string) *Pool {
	group := *p.group.Load()
	to := group[0]
	if len(group) > 1 {
		to = rendezvous(group, key)
	}
	if len(p.list) == 1 {
		return to
	}
	s := to.use()
	if s.Utilisation <= spill {
		return to
	}
	least, demand := to, s.Demand
	for _, other := range p.list {
		if s := other.use(); s.Demand < demand {
			least, demand = other, s.Demand
		}
	}
	if least != to {
		p.spilled.Add(1)
	}
	return least
}

// rendezvous returns the pool with the highest weight for the key. A pool that is added
// or removed moves no keys between the others.
func rendezvous(pools []*Pool, key string) *Pool {
	return slices.MaxFunc(pools, func(a, b *Pool) int {
		return cmp.Compare(maphash.String(a.seed, key), maphash.String(b.seed, key))
	})
}

// prefer sets the affinity group; an empty one means the whole list.
func (p *Pool) prefer(names []string) {
	group := byName(p.list, names)
	if len(group) == 0 {
		group = p.list
	}
	p.group.Store(&group)
}

// preferred names the affinity group.
func (p *Pool) preferred() []string {
	var names []string
	for _, other := range *p.group.Load() {
		names = append(names, other.name)
	}
	return names
}

// checkAffinity returns why a group is invalid.
func (p *Pool) checkAffinity(names []string) error {
	for _, name := range names {
		if len(byName(p.list, []string{name})) == 0 {
			return fmt.Errorf("pool %q is not in its list", name)
		}
	}
	return nil
}

// byName finds pools; unknown names are left out.
func byName(pools []*Pool, names []string) []*Pool {
	return slices.DeleteFunc(slices.Clone(pools), func(p *Pool) bool { return !slices.Contains(names, p.name) })
}
