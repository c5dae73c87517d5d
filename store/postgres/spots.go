package postgres

import (
	"sync"

	"github.com/jackc/pgx/v5/pgtype"

	"takt/store"
)

// maxSpots bounds the memory of spots: some megabytes.
const maxSpots = 1 << 16

// spots remembers where in the heap the rows of workers are, by the family of
// their tokens. Every poll writes its worker's row anew. While some transaction
// holds an old snapshot nothing of that can be vacuumed, and whoever comes through
// an index steps over all versions of the row; who comes by its place, over none.
//
// A place is a hint: the row that is found there counts only if it is the
// worker's, and else the indexes are asked. Safe for concurrent use; the zero
// value knows nothing.
type spots struct {
	mu sync.Mutex
	at map[int64]spot
}

// spot is what is remembered of one worker.
type spot struct {
	place pgtype.TID
	all   bool // took all platforms
}

// of returns the places of the workers of polls, as far as they are known.
func (s *spots) of(polls []store.Poll) []pgtype.TID {
	out := make([]pgtype.TID, len(polls))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range polls {
		if !polls[i].Token.IsZero() {
			out[i] = s.at[polls[i].Token.Family()].place
		}
	}
	return out
}

// plain returns the places of the workers of polls if sqlServePlain would probably
// take them all, else nil.
func (s *spots) plain(polls []store.Poll) []pgtype.TID {
	out := make([]pgtype.TID, len(polls))
	seen := make(map[pgtype.TID]struct{}, len(polls)) // no worker twice
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range polls {
		p := &polls[i]
		if p.Token.IsZero() || p.Mode > store.Park || p.Reconcile {
			return nil
		}
		known := s.at[p.Token.Family()]
		if !known.all {
			return nil
		}
		out[i] = known.place
		seen[known.place] = struct{}{}
	}
	if len(seen) < len(polls) {
		return nil
	}
	return out
}

// learn notes where the workers of polls are after they were served.
func (s *spots) learn(polls []store.Poll, results []store.PollResult, at []pgtype.TID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil || len(s.at)+len(polls) > maxSpots {
		s.at = make(map[int64]spot, len(polls))
	}
	for i := range at {
		known := spot{place: at[i], all: laneOf(results[i].Platforms) == laneAll}
		switch {
		case !at[i].Valid:
		case results[i].Outcome == store.PollAnswered:
			s.at[polls[i].Next.Family()] = known
		case !polls[i].Token.IsZero():
			s.at[polls[i].Token.Family()] = known
		}
	}
}
