package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"takt/store"
)

// classes are the classes of work that may have pending builds as far as this controller
// knows: those of builds that it counted or added lately, and the plain classes of ios and
// android. Safe for concurrent use; the zero value has the plain classes.
type classes struct {
	mu   sync.Mutex // guards what follows
	seen map[int32]seenClass
	// sorted is the result of all, by number; nil before the first use. It is replaced as a
	// whole, so readers need no lock.
	sorted []store.Class
	// numbers caches the numbers of classes by nameOf. A class never changes its number.
	numbers map[string]int32
}

type seenClass struct {
	store.Class
	at time.Time
}

const (
	// classAge is how long builds of a class are looked for after some were last pending.
	classAge = time.Minute
	// maxNumbers is the most entries of classes.numbers, which is emptied when it is full.
	maxNumbers = 4096
)

// note records classes with pending builds, and forgets those that were not noted for
// classAge.
func (c *classes) note(now time.Time, found ...store.Class) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := len(c.seen)
	for _, one := range found {
		if one.ID == 0 || store.PlainClass(one.Platform) == one.ID {
			continue
		}
		if c.seen == nil {
			c.seen = map[int32]seenClass{}
		}
		if old, ok := c.seen[one.ID]; ok {
			one = old.Class
		} else {
			known = -1
		}
		c.seen[one.ID] = seenClass{one, now}
	}
	maps.DeleteFunc(c.seen, func(_ int32, s seenClass) bool { return now.Sub(s.at) > classAge })
	if c.sorted == nil || len(c.seen) != known {
		c.sorted = []store.Class{{ID: store.IOSClass, Platform: store.IOS}, {ID: store.AndroidClass, Platform: store.Android}}
		for _, s := range c.seen {
			c.sorted = append(c.sorted, s.Class)
		}
		slices.SortFunc(c.sorted, func(a, b store.Class) int { return cmp.Compare(a.ID, b.ID) })
	}
}

// all returns the classes that may have pending builds, by number.
func (c *classes) all() []store.Class {
	c.mu.Lock()
	sorted := c.sorted
	c.mu.Unlock()
	if sorted == nil {
		c.note(time.Time{})
		return c.all()
	}
	return sorted
}

// classSet is the set of classes that a worker can take.
type classSet struct {
	key string // the numbers, as text
	ids []int32
}

// setOf returns the classes among all that a worker can take.
func setOf(all []store.Class, s *store.WorkerSession) (set classSet) {
	key := make([]byte, 0, 16)
	for i := range all {
		if s.Takes(&all[i]) {
			set.ids = append(set.ids, all[i].ID)
			key = append(strconv.AppendInt(key, int64(all[i].ID), 10), ' ')
		}
	}
	set.key = string(key)
	return set
}

const (
	sqlFindClass = `/* find_class */ SELECT id FROM build_classes WHERE platform = $1 AND require = $2`
	// A controller of an earlier release may add it at the same time, without the lock.
	sqlAddClass = `/* add_class */ INSERT INTO build_classes (platform, require) VALUES ($1, $2)
ON CONFLICT (platform, require) DO UPDATE SET platform = excluded.platform RETURNING id`
)

// classOf returns the class of builds of a platform with a requirement. Its number is 0 if no
// build was ever added to it, see numberClasses.
func (db *DB) classOf(ctx context.Context, p store.Platform, require store.Require) (class store.Class, err error) {
	class = store.Class{Platform: p, Require: require}
	if len(require) == 0 && store.PlainClass(p) > 0 {
		class.ID = store.PlainClass(p)
		return class, nil
	}
	if class.ID = db.classes.number(class); class.ID > 0 {
		return class, nil
	}
	err = db.read("finding a class").run(ctx, func(ctx context.Context, c *pgx.Conn) error {
		return findClass(ctx, c, &class)
	})
	return class, err
}

// findClass sets the number of a class, unless it has none yet.
func findClass(ctx context.Context, q querier, c *store.Class) error {
	err := q.QueryRow(ctx, sqlFindClass, string(c.Platform), c.Require.String()).Scan(&c.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

// number returns the number of a class, 0 if it is not cached.
func (c *classes) number(class store.Class) int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.numbers[nameOf(class)]
}

// keep caches the number of a class of which a build was committed.
func (c *classes) keep(class store.Class) {
	if class.ID == store.PlainClass(class.Platform) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.numbers == nil || len(c.numbers) >= maxNumbers {
		c.numbers = map[string]int32{}
	}
	c.numbers[nameOf(class)] = class.ID
}

// nameOf returns a class's platform and requirement, which no other class has.
func nameOf(c store.Class) string { return string(c.Platform) + " " + c.Require.String() }

// pendingClasses finds the classes that have pending builds, with one look-up in the index
// for each.
const pendingClasses = `RECURSIVE c AS (
	(SELECT class FROM builds WHERE state = 'pending' AND class > 0 ORDER BY class LIMIT 1)
	UNION ALL
	SELECT (SELECT b.class FROM builds b WHERE b.state = 'pending' AND b.class > 0 AND b.class > c.class ORDER BY b.class LIMIT 1) FROM c WHERE c.class IS NOT NULL
)`

const (
	// classesKey is the advisory lock that a transaction holds while it adds the first pending
	// build of a class.
	classesKey = 0x74616b74_636c6173 // "taktclas"

	sqlNewClasses = `/* new_classes */ SELECT c FROM unnest($1::int[]) c
WHERE NOT EXISTS (SELECT FROM builds WHERE state = 'pending' AND class > 0 AND class = c) AND c NOT IN (` + waitingClasses + `)`
	sqlCountClasses = `/* count_classes */ WITH ` + pendingClasses + ` SELECT count(class) FROM ((SELECT class FROM c LIMIT $1) UNION ` + waitingClasses + `) c`

	// sqlCountOwnClasses counts the classes of the pending builds of each submitter, with one
	// look-up in builds_by_submitter_class for each class. Its conditions leave the planner no
	// other index, as in claimSQL.
	sqlCountOwnClasses = `/* count_own_classes */ SELECT (
	WITH RECURSIVE c AS (
		(SELECT class FROM builds WHERE state >= 'pending' AND state <= 'pending' AND class > 2 AND coalesce(submitter, '') = k.name ORDER BY class LIMIT 1)
		UNION ALL
		SELECT (SELECT b.class FROM builds b WHERE b.state >= 'pending' AND b.state <= 'pending' AND b.class > 2 AND coalesce(b.submitter, '') = k.name AND b.class > c.class ORDER BY b.class LIMIT 1)
		FROM c WHERE c.class IS NOT NULL
	) SELECT count(class)::int FROM (
		SELECT class FROM c UNION
		SELECT i.home_class FROM build_inputs i JOIN builds b ON b.seq = i.build WHERE i.due_at IS NOT NULL AND i.home_class > 2 AND coalesce(b.submitter, '') = k.name
	) c
) FROM unnest($1::text[]) WITH ORDINALITY AS k(name, nr) ORDER BY nr`
)

// limitClasses refuses additions after which more than store.MaxClasses classes would have
// pending builds, or those of one key more classes than its share. It counts only if one of
// the additions has a requirement and no build of its class is pending yet. Then it locks, so
// that no other transaction adds such a build meanwhile.
func limitClasses(ctx context.Context, tx pgx.Tx, all []*addition) error {
	fresh, err := freshClasses(ctx, tx, all)
	if err != nil || len(fresh) == 0 {
		return err
	}
	if _, err := tx.Exec(ctx, sqlHoldLimit, int64(classesKey)); err != nil {
		return err
	}
	for _, a := range all {
		if a.class.ID == 0 { // unless another transaction has added it before the lock
			if err := findClass(ctx, tx, &a.class); err != nil {
				return err
			}
		}
	}
	if fresh, err = freshClasses(ctx, tx, all); err != nil {
		return err
	}
	var have int
	if err := tx.QueryRow(ctx, sqlCountClasses, store.MaxClasses+1).Scan(&have); err != nil {
		return err
	}
	keys := []string{}
	for _, a := range all {
		if fresh[nameOf(a.class)] && !slices.Contains(keys, a.Submitter) {
			keys = append(keys, a.Submitter)
		}
	}
	own, err := collect(ctx, tx, pgx.RowTo[int], sqlCountOwnClasses, keys)
	if err != nil {
		return err
	}
	for _, a := range all {
		i := slices.Index(keys, a.Submitter)
		switch name := nameOf(a.class); {
		case !fresh[name]:
		case have >= store.MaxClasses:
			a.err = store.NewError(store.Unprocessable, "Builds of "+strconv.Itoa(store.MaxClasses)+
				" different platforms and requirements wait already: use requirements that more builds share, or wait")
		case !store.ClassShare(a.Submitter, own[i], have):
			a.err = store.ErrKeyClassesFull(a.Submitter, own[i])
		default:
			have, own[i], fresh[name] = have+1, own[i]+1, false
		}
	}
	return nil
}

// freshClasses returns the classes of additions, by nameOf, of which no build is pending. The
// plain classes of ios and android don't count.
func freshClasses(ctx context.Context, tx pgx.Tx, all []*addition) (map[string]bool, error) {
	fresh, numbers := map[string]bool{}, []int32{}
	for _, a := range all {
		switch id := a.class.ID; {
		case id == 0:
			fresh[nameOf(a.class)] = true
		case id != store.PlainClass(a.class.Platform) && !slices.Contains(numbers, id):
			numbers = append(numbers, id)
		}
	}
	if len(numbers) == 0 {
		return fresh, nil
	}
	found, err := collect(ctx, tx, pgx.RowTo[int32], sqlNewClasses, numbers)
	for _, a := range all {
		if a.class.ID > 0 && slices.Contains(found, a.class.ID) {
			fresh[nameOf(a.class)] = true
		}
	}
	return fresh, err
}

// numberClasses adds the classes that have no number. limitClasses has locked, so no other
// transaction adds them; and only builds that are about to be added get here, so that what is
// refused leaves no class and takes no number.
func numberClasses(ctx context.Context, tx pgx.Tx, all []*addition) error {
	added := map[string]int32{}
	for _, a := range all {
		if a.class.ID > 0 {
			continue
		}
		name := nameOf(a.class)
		if added[name] == 0 {
			var id int32
			if err := tx.QueryRow(ctx, sqlAddClass, string(a.class.Platform), a.class.Require.String()).Scan(&id); err != nil {
				return err
			}
			added[name] = id
		}
		a.class.ID = added[name]
	}
	return nil
}

// maxSets is how many sets of classes one transaction claims builds for. Polls of workers
// with other sets are served in the next pass.
const maxSets = 16

// claimSQL returns the statement that locks the first builds of single sets of one class,
// followed by several sets of more. Small sets come first, because their workers have less
// choice. Each scan starts at its low-water mark and reads one index in its order:
// builds_by_class for one class, builds_in_order for several. The conditions are written so
// that the planner can use no other index, because it may plan while nothing is pending.
func claimSQL(single, several int) string {
	var sql, union strings.Builder
	sql.WriteString("/* claim_builds */\nWITH ")
	for i := range single + several {
		order, taken := "position, seq", ""
		where := fmt.Sprintf("class + 0 = ANY ($%d) AND position >= $%d", 3*i+2, 3*i+3)
		if i < single {
			order = "class, position, seq"
			where = fmt.Sprintf("class > 0 AND (class, position) >= ($%[1]d, $%[2]d) AND class <= $%[1]d", 3*i+2, 3*i+3)
		}
		for j := range i {
			taken += " AND seq <> ALL (ARRAY(SELECT seq FROM s" + strconv.Itoa(j) + "))"
		}
		separator := ""
		if i > 0 {
			separator = ", "
			union.WriteString(" UNION ALL ")
		}
		fmt.Fprintf(&sql, "%ss%d AS MATERIALIZED (\n\t%s%s AND seq <> ALL ($1::bigint[])%s ORDER BY %s LIMIT $%d%s\n)",
			separator, i, pending, where, taken, order, 3*i+4, forUs)
		fmt.Fprintf(&union, "SELECT %d, * FROM s%d", i, i)
	}
	return sql.String() + "\n" + union.String()
}

// claim is what a transaction claims for the workers that can take one set of classes.
type claim struct {
	classSet
	wanted int           // how many builds to lock
	builds []lockedBuild // in the order of the queue, without those handed out
	// whole is true if the scan found fewer builds than wanted and did not have to look below
	// the low-water marks.
	whole bool
	// first is the position of the first build that was locked, 0 if there was none.
	first int64
}

// plan returns the claims for turns, according to the sessions of their workers.
func plan(all []store.Class, turns []*turn) []*claim {
	var claims []*claim
	last := (*turn)(nil)
	for _, t := range turns {
		if t.takes = (classSet{}); !t.Session.Free() {
			continue
		}
		if last == nil || !t.alike(last) {
			t.takes = setOf(all, &t.Session)
		} else {
			t.takes = last.takes
		}
		last = t
		i := slices.IndexFunc(claims, func(c *claim) bool { return c.key == t.takes.key })
		switch {
		case len(t.takes.ids) == 0:
		case i >= 0:
			claims[i].wanted++
		default:
			claims = append(claims, &claim{classSet: t.takes, wanted: 1})
		}
	}
	planMore(claims, turns)
	slices.SortStableFunc(claims, func(a, b *claim) int { return len(a.ids) - len(b.ids) })
	return claims[:min(len(claims), maxSets)]
}

// planMore makes claims lock the second and further builds of polls that may get several, up to
// MaxBatch builds in all. A claim that shares a class with another one does not: it could leave
// none for the first build of a poll of the other.
func planMore(claims []*claim, turns []*turn) {
	room := MaxBatch - len(turns)
	for _, t := range turns {
		more := min(t.New, t.Session.Slots-t.Session.Held) - 1
		i := slices.IndexFunc(claims, func(c *claim) bool { return c.key == t.takes.key })
		if more <= 0 || i < 0 || slices.ContainsFunc(claims, func(c *claim) bool { return c != claims[i] && c.overlaps(t.takes) }) {
			continue
		}
		more = min(more, room)
		room -= more
		claims[i].wanted += more
	}
}

// overlaps reports whether a class is in both sets.
func (s classSet) overlaps(o classSet) bool {
	return slices.ContainsFunc(s.ids, func(id int32) bool { return slices.Contains(o.ids, id) })
}

// alike reports whether the workers of both polls can take the same builds.
func (t *turn) alike(o *turn) bool {
	return slices.Equal(t.Session.Platforms, o.Session.Platforms) && maps.Equal(t.Session.Labels, o.Session.Labels)
}

// statement returns the statement that runs claims, and its arguments. skip are builds that
// it must not lock.
func statement(claims []*claim, p pass, skip []int64) (sql string, args []any) {
	single := 0
	args = []any{skip}
	for _, c := range claims {
		if len(c.ids) == 1 {
			single++
			args = append(args, c.ids[0], p.from(c.ids), c.wanted)
		} else {
			args = append(args, c.ids, p.from(c.ids), c.wanted)
		}
	}
	if key := [2]int{single, len(claims) - single}; key != oneSet {
		return claimSQL(key[0], key[1]), args
	}
	return claimOneSet, args
}

// claimOneSet is the statement for workers that all take the same two or more classes, which
// is the usual case.
var (
	oneSet      = [2]int{0, 1}
	claimOneSet = claimSQL(oneSet[0], oneSet[1])
)
