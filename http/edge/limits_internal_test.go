package edge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"takt/store"
	"takt/store/limiter"
)

// alone are the limits that nobody has a share of: their users are of one kind, and each holds a
// unit for a moment, or is not told why it gets none.
var alone = map[string]bool{
	RuleTail: true, RuleLivePages: true, RuleProfiles: true, RuleRefusedBodies: true, RuleCertificates: true,
}

// Whoever takes of a limit what it can get, as fast as it can, another gets a unit.
func TestLimitsAreNotUsedUpByOne(t *testing.T) {
	t.Parallel()
	for _, limit := range limits(Config{}.WithDefaults()) {
		t.Run(limit.Rule, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, alone[limit.Rule], !limit.Fair && limit.Each == 0)
			if alone[limit.Rule] {
				return
			}
			synctest.Test(t, func(t *testing.T) {
				l := limiter.New(limit)
				greedy, other := store.Share{Credential: "greedy"}, store.Share{Credential: "other", Part: "w"}
				if !limit.Fair {
					greedy, other = store.Share{Part: "192.0.2.1"}, store.Share{Part: "192.0.2.2"}
				}
				ctx, stop := context.WithCancelCause(t.Context())
				for i := range 2 * (limit.Most + limit.Queue) {
					who := greedy
					if limit.Fair {
						who.Part = fmt.Sprint(i)
					}
					go func() {
						if u, err := l.Take(ctx, who, nil); err == nil {
							<-ctx.Done()
							u.Release()
						}
					}()
				}
				synctest.Wait()
				begin := time.Now()
				u, err := l.Take(t.Context(), other, nil)
				require.NoError(t, err)
				require.Equal(t, begin, time.Now(), "at once")
				u.Release()
				stop(errors.New("the test is over"))
			})
		})
	}
}

// docs/limits.md says what the table says.
func TestLimitsAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/limits.md")
	require.NoError(t, err)
	rows := map[string][]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|(.*)\\|$").FindAllStringSubmatch(string(page), -1) {
		rows[row[1]] = strings.Split(row[2], "|")
	}
	number := func(n int) string {
		if n == 0 {
			return "-"
		}
		return strconv.Itoa(n)
	}
	all := limits(Config{}.WithDefaults())
	for _, l := range all {
		row := rows[l.Rule]
		require.Len(t, row, 5, l.Rule)
		each, wait := number(l.Each), "-"
		if l.Fair {
			each = "shared"
		}
		if l.Wait == limiter.Forever {
			wait = "until there is one"
		} else if l.Wait > 0 {
			wait = l.Wait.String()
		}
		for i, want := range []string{number(l.Most), each, wait, number(l.Queue)} {
			require.Equal(t, want, strings.TrimSpace(row[i+1]), "%s: column %d", l.Rule, i+3)
		}
	}
	require.Len(t, rows, len(all), "nor does it say more")
}
