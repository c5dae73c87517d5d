package build

import "takt/store"

// A lane is a platform as a small number, to index arrays by.
const (
	laneIOS = iota
	laneAndroid
	laneCount

	noLane = -1
)

// laneOf returns p's lane, or noLane for a platform that takt does not know.
func laneOf(p store.Platform) int {
	switch p {
	case store.IOS:
		return laneIOS
	case store.Android:
		return laneAndroid
	default:
		return noLane
	}
}

// platforms is a set of lanes: what a worker takes.
type platforms uint8

const (
	nothing    platforms = 0
	everything platforms = 1<<laneCount - 1
	// platformSets is how many different sets there are.
	platformSets = 1 << laneCount
)

// setOf returns the set for a worker's list. An empty list means everything;
// a list of unknown names means nothing.
func setOf(list []store.Platform) platforms {
	if len(list) == 0 {
		return everything
	}
	set := nothing
	for _, p := range list {
		if lane := laneOf(p); lane != noLane {
			set |= 1 << lane
		}
	}
	return set
}

// has reports whether lane is in s.
func (s platforms) has(lane int) bool { return s&(1<<lane) != 0 }
