package http_test

import (
	"context"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/openapitest"
)

// document is what routes are described in, read once for all tests.
var document = sync.OnceValues(func() (*openapitest.Checker, error) {
	return openapitest.Load(context.Background(), takthttp.OpenAPI())
})

func checker(tb testing.TB) *openapitest.Checker {
	tb.Helper()
	c, err := document()
	require.NoError(tb, err)
	return c
}

const howToDescribe = `
http/openapi.yaml and the table of routes differ. Declare a new route in http/api and run
"make docs". Replies of all tests in this package are checked against the document.`

func TestOpenAPIAgreesWithTheRoutes(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{})
	var registered []string
	param := regexp.MustCompile(`:(\w+)`)
	for _, r := range s.Routes() {
		if s.IsPage(r.Method, r.Path) {
			continue
		}
		path := param.ReplaceAllString(r.Path, "{$1}")
		tree, ok := strings.CutSuffix(path, "/*")
		switch {
		case ok && r.Method == http.MethodPost: // the last segment says what to do
			for _, action := range []string{"restart", "terminate", "start"} {
				registered = append(registered, "POST "+tree+"/{path}/"+action)
			}
		case ok:
			registered = append(registered, r.Method+" "+tree+"/{path}")
		default:
			registered = append(registered, r.Method+" "+path)
		}
	}
	slices.Sort(registered)
	require.Equal(t, registered, checker(t).Operations(), howToDescribe)
}

func TestOpenAPIKnowsWhatNeedsAKey(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{})
	url, _ := serve(t, s, listen(t))
	c := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(c.CloseIdleConnections)
	hole := regexp.MustCompile(`\{\w+\}`)
	for _, operation := range checker(t).Operations() {
		method, path, _ := strings.Cut(operation, " ")
		r := send(t, c, method, url+hole.ReplaceAllString(path, "x"), nil, nil)
		require.Equal(t, checker(t).Public(operation), r.status != 401, "%s: %d", operation, r.status)
	}
}

func TestOpenAPIIsShown(t *testing.T) {
	t.Parallel()
	s, _ := newServer(t, takthttp.Deps{})
	url, _ := serve(t, s, listen(t))
	c := newClient(t)
	r := send(t, c, "GET", url+"/openapi.yaml", nil, nil)
	require.Equal(t, 200, r.status)
	require.Equal(t, "application/yaml", r.header.Get("Content-Type"))
	require.Equal(t, string(takthttp.OpenAPI()), r.body)
	r = send(t, c, "GET", url+"/openapi.yaml", map[string]string{"If-None-Match": r.header.Get("ETag")}, nil)
	require.Equal(t, 304, r.status)
	require.Equal(t, 200, send(t, c, "HEAD", url+"/openapi.yaml", nil, nil).status)
}
