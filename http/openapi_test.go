package http_test

import (
	"context"
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

func TestOpenAPIIsShown(t *testing.T) {
	t.Parallel()
	url := served(t, takthttp.Deps{})
	c := newClient(t)
	r := send(t, c, "GET", url+"/openapi.yaml", nil, nil)
	require.Equal(t, 200, r.status)
	require.Equal(t, "application/yaml", r.header.Get("Content-Type"))
	require.Equal(t, string(takthttp.OpenAPI()), r.body)
	r = send(t, c, "GET", url+"/openapi.yaml", map[string]string{"If-None-Match": r.header.Get("ETag")}, nil)
	require.Equal(t, 304, r.status)
	require.Equal(t, 200, send(t, c, "HEAD", url+"/openapi.yaml", nil, nil).status)
}
