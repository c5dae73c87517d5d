package heijunka

import (
	"slices"
	"sync/atomic"
)

// domain is a kind of requests, with where they go.
type domain struct {
	DomainConfig
	list []*Pool
	// group is the preferred part of the list; replaced whole.
	group   atomic.Pointer[[]*Pool]
	spilled atomic.Int64
}

// prefer sets the affinity group; nothing means the whole list.
func (d *domain) prefer(group []*Pool) {
	if len(group) == 0 {
		group = d.list
	}
	d.group.Store(&group)
}

// route chooses the pool of a request: the one of the group that key hashes to,
// unless that is over spill and another one of the list has less to do.
func (d *domain) route(key string, spill float64) *Pool {
	group := *d.group.Load()
	p := group[0]
	if len(group) > 1 {
		p = rendezvous(group, hash(key))
	}
	if len(d.list) == 1 || !p.over(spill) {
		return p
	}
	least := p
	for _, other := range d.list {
		if other.lanes.demand() < least.lanes.demand() {
			least = other
		}
	}
	if least != p {
		d.spilled.Add(1)
	}
	return least
}

// over reports whether more than the share spill of the pool is busy.
func (p *Pool) over(spill float64) bool {
	return float64(p.lanes.busy.Load()) > spill*float64(p.lanes.live.Load()) || p.lanes.live.Load() == 0
}

// rendezvous returns the pool with the highest weight for the key: a pool that
// comes or goes moves no keys between the others.
func rendezvous(pools []*Pool, key uint64) *Pool {
	var best *Pool
	var top uint64
	for _, p := range pools {
		if w := mix(key ^ p.seed); best == nil || w > top {
			best, top = p, w
		}
	}
	return best
}

// hash is FNV-1a.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// mix spreads every bit of x over all others (the finaliser of MurmurHash3).
func mix(x uint64) uint64 {
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// names lists pools by name.
func names(pools []*Pool) []string {
	out := make([]string, 0, len(pools))
	for _, p := range pools {
		out = append(out, p.name)
	}
	return out
}

// byName finds pools; unknown names are left out.
func byName(pools []*Pool, names []string) []*Pool {
	return slices.DeleteFunc(slices.Clone(pools), func(p *Pool) bool { return !slices.Contains(names, p.name) })
}
