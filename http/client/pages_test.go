package client_test

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"takt/http/client"
)

// Lists follow the links of a controller until they have what was asked for.
func TestListsFollowLinks(t *testing.T) {
	t.Parallel()
	const total = 23
	for _, tt := range []struct {
		name      string
		most      int  // elements that the controller sends at once
		links     bool // it sends links
		limit     int
		got, asks int
	}{
		{"all", 10, true, 0, total, 3},
		{"some of the first page", 10, true, 7, 7, 1},
		{"a part of a later page", 10, true, 12, 12, 2},
		{"more than there are", 10, true, 99, total, 3},
		{"an older controller", total, false, 0, total, 1},
		{"one that ignores limits", total, false, 5, 5, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, seen := setup(t, func(w http.ResponseWriter, r *http.Request) {
				q := r.URL.Query()
				first, _ := strconv.Atoi(q.Get("cursor"))
				end := min(first+tt.most, total)
				if limit, err := strconv.Atoi(q.Get("limit")); err == nil && tt.links {
					end = min(end, first+limit)
				}
				if end < total && tt.links {
					w.Header().Add("Link", `</api/builds?cursor=0>; rel="first"`)
					w.Header().Add("Link", fmt.Sprintf(`</elsewhere>; rel="help", <https://other/api/builds?cursor=%d&limit=1>; rel="next"`, end))
				}
				body := ""
				for i := first; i < end; i++ {
					body += fmt.Sprintf(`,{"id":"b%d"}`, i)
				}
				_, _ = fmt.Fprintf(w, "[%s]", body[min(1, len(body)):])
			})
			list := must(c.List(t.Context(), client.Filter{Limit: tt.limit, Status: "pending"}))(t)
			require.Len(t, list, tt.got)
			for i, b := range list {
				require.Equal(t, fmt.Sprintf("b%d", i), b.ID)
			}
			require.Equal(t, tt.asks, seen.count())
			require.Equal(t, "pending", seen.last(t).URL.Query().Get("status"), "the filter stays")
		})
	}
}
