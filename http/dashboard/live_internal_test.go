package dashboard

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/require"
)

// What a page does not read makes no view of its own, and only so many views are open.
func TestOpenViewsAreBounded(t *testing.T) {
	t.Parallel()
	l, p := newLive(), &page{name: "builds", params: []string{"platform", "state", "age", "label", "after"}}
	open := func(query string) (*liveView, func()) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/builds"+query, http.NoBody)
		return l.join((&Dashboard{}).newView(echo.New().NewContext(r, httptest.NewRecorder()), p))
	}
	first, leave := open("?state=failed&q=1&done=x")
	for _, same := range []string{"?state=failed", "?q=2&state=failed", "?state=failed&platform=", "?state=failed&state="} {
		lv, _ := open(same)
		require.Same(t, first, lv, same)
	}
	require.Equal(t, 1, l.open())
	for i := range maxViews - 1 {
		lv, _ := open("?after=" + strconv.Itoa(i))
		require.NotNil(t, lv)
	}
	lv, _ := open("?after=one-too-many")
	require.Nil(t, lv)
	leave()
	lv, _ = open("?state=failed")
	require.Same(t, first, lv, "others follow it still")
	require.Panics(t, func() { first.Get("q") }, "what a page reads is declared")
}
