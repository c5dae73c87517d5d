package http_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	takthttp "takt/http"
	"takt/http/api"
	"takt/storage"
	"takt/store"
)

// certsZip is an archive of names and contents, in this order.
func certsZip(t *testing.T, entries ...string) part {
	t.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	for i := 0; i+1 < len(entries); i += 2 {
		f, err := w.Create(entries[i])
		require.NoError(t, err)
		_, err = f.Write([]byte(entries[i+1]))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return part{"certs", "certs.zip", buf.String()}
}

func TestSecureCertsAreUnpackedForTheirHolder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p12 := strings.Repeat("\x00p12\xff<>", 500)
	s, w := b.assigned(certsZip(t, "dist.p12", p12, "password.txt", " s3cret\n", "a.mobileprovision", "A", "b.mobileprovision", "B"))
	get := func() reply {
		return b.send("GET", "/api/builds/"+s.ID+"/certs-secure", key("X-Worker-Id", w.ID, "X-Build-Id", s.ID, "Accept", "application/json"), "")
	}
	r := get()
	require.Equal(t, 200, r.status, r.body)
	requireShape(t, "secure_certs", r)
	require.Equal(t, "no-store", r.header.Get("Cache-Control"))
	var raw map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.body), &raw))
	require.Equal(t, base64.StdEncoding.EncodeToString([]byte(p12)), raw["p12"], "standard base64 without line breaks")
	require.Equal(t, []any{"QQ==", "Qg=="}, raw["provisioningProfiles"])
	c := decode[api.SecureCerts](t, r)
	require.Equal(t, "s3cret", c.P12Password)
	keychain, err := base64.StdEncoding.DecodeString(c.KeychainPassword)
	require.NoError(t, err)
	require.Len(t, keychain, 24)
	require.Len(t, c.KeychainPassword, 32)
	require.NotEqual(t, c.KeychainPassword, decode[api.SecureCerts](t, get()).KeychainPassword, "fresh on every request")
	require.Equal(t, "building", b.status(s.ID).Status)
	require.NotContains(t, b.logs.String(), "s3cret")
	require.NotContains(t, b.logs.String(), c.KeychainPassword)

	s, w = b.assigned(certsZip(t, "dist.p12", "x")) // the least there is
	r = get()
	require.Equal(t, 200, r.status, r.body)
	require.Contains(t, r.body, `"p12Password":""`, "the bootstrap refuses null")
	require.Contains(t, r.body, `"provisioningProfiles":[]`)
}

func TestCertsThatCantBeUnpackedSaySo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, certs := range map[string]part{
		"no archive":        {"certs", "c.zip", "secret bytes that are no archive"},
		"no p12":            certsZip(t, "readme.txt", "x"),
		"a name that leads": certsZip(t, "../dist.p12", "x"),
	} {
		s, w := b.assigned(certs)
		r := b.send("GET", "/api/builds/"+s.ID+"/certs-secure", key("X-Worker-Id", w.ID, "X-Build-Id", s.ID), "")
		require.Equal(t, 422, r.status, name)
		requireProblem(t, r, "Failed to process certs file", "certs_unusable")
		require.Equal(t, 200, b.send("POST", "/api/builds/"+s.ID+"/cancel", key(), "").status)
	}
	require.NotContains(t, b.logs.String(), "secret bytes")
	require.NotContains(t, b.logs.String(), `"level":"error"`, "a submitter decides it")
}

// gatedFiles holds whoever opens certificates.
type gatedFiles struct {
	takthttp.Files
	opened chan struct{}
	gate   chan struct{}
}

func (g gatedFiles) OpenSealed(ctx context.Context, f store.File) (*storage.SealedFile, error) {
	g.opened <- struct{}{}
	<-g.gate
	return g.Files.OpenSealed(ctx, f)
}

// asked counts who was found to hold a build.
type asked struct {
	takthttp.Builds
	n *atomic.Int64
}

func (a asked) Held(ctx context.Context, heartbeat store.Heartbeat) (store.Build, error) {
	defer a.n.Add(1)
	return a.Builds.Held(ctx, heartbeat)
}

func TestCertsAreUnpackedAFewAtOnceAndBounded(t *testing.T) {
	t.Parallel()
	gated := gatedFiles{opened: make(chan struct{}, 100), gate: make(chan struct{})}
	release := sync.OnceFunc(func() { close(gated.gate) })
	defer release()
	var holders atomic.Int64
	b := setupWith(t, func(d *takthttp.Deps) {
		gated.Files, d.Builds = d.Files, asked{d.Builds, &holders}
		d.Files = gated
	})
	s, w := b.assigned(certsZip(t, "dist.p12", "x"))
	const all, atOnce = 7, 4
	replies := make(chan reply, all)
	for range all {
		go func() {
			replies <- b.send("GET", "/api/builds/"+s.ID+"/certs-secure", key("X-Worker-Id", w.ID, "X-Build-Id", s.ID), "")
		}()
	}
	require.Eventually(t, func() bool { return holders.Load() == all }, waitFor, tick)
	for range atOnce {
		<-gated.opened
	}
	// Those that wait hold no file: they come one by one, as places become free.
	for range all - atOnce {
		require.Empty(t, gated.opened)
		gated.gate <- struct{}{}
		<-gated.opened
	}
	release()
	for range all {
		require.Equal(t, 200, (<-replies).status)
	}
	unpack := func(size int) reply {
		s, w := b.assigned(certsZip(t, "dist.p12", strings.Repeat("x", size)))
		return b.send("GET", "/api/builds/"+s.ID+"/certs-secure", key("X-Worker-Id", w.ID, "X-Build-Id", s.ID), "")
	}
	require.Equal(t, 200, unpack(12<<20-1).status)
	r := unpack(12<<20 + 1)
	require.Equal(t, 422, r.status)
	requireProblem(t, r, "Failed to process certs file", "certs_unusable")
}
