package storage

import (
	"bytes"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"takt/storage/s3test"
	"takt/store"
)

// behindProxy is a depot whose S3 is behind a proxy that makes faults.
func behindProxy(t *testing.T, mode Mode) (*depot, *s3test.Proxy) {
	t.Helper()
	var p *s3test.Proxy
	d := openDepot(t, mode, quick)
	p = d.server.Proxy()
	cfg := d.s3.cfg
	cfg.Endpoint, cfg.StallTimeout = p.Endpoint, time.Second
	s3 := must(OpenS3(cfg))(t)
	t.Cleanup(s3.Close)
	d.s3 = s3
	return d, p
}

// inTime is how long a fault of S3 may hold up a request: the time-out of a stalled
// transfer, three attempts, and a busy machine.
const inTime = 8 * time.Second

func TestUploadsToAFaultyS3(t *testing.T) {
	t.Parallel()
	const size = 300_000
	for name, fault := range map[string]s3test.Fault{
		"full":                 s3test.Refuse(http.StatusInsufficientStorage, "QuotaExceeded"),
		"busy":                 s3test.Refuse(http.StatusServiceUnavailable, "SlowDown"),
		"forbidden":            s3test.Refuse(http.StatusForbidden, "AccessDenied"),
		"failing":              s3test.Refuse(http.StatusInternalServerError, "InternalError"),
		"another server":       s3test.Refuse(http.StatusNotFound, "NoSuchKey"),
		"swallowed":            s3test.Swallow,
		"wrong bytes":          s3test.Edit(true, s3test.Garble(200_000)),
		"cut":                  s3test.Edit(true, s3test.Cut(150_000)),
		"slow beyond patience": s3test.Edit(true, s3test.Delay(t.Context(), 300*time.Millisecond)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			content := randomBytes(size)
			d, proxy := behindProxy(t, ModeS3)
			proxy.Set(fault)
			begun := time.Now()
			_, err := commit(t.Context(), d.create(sourceName, content, false), sourceName)
			require.Equal(t, store.Unavailable, store.CodeOf(err), "%v", err)
			require.Less(t, time.Since(begun), inTime)
			require.Empty(t, d.local())
			proxy.Set(nil)
			require.Empty(t, d.server.Objects(), "half an object is none")
			require.True(t, bytes.Equal(content, d.read(d.keep(sourceName, content, false), false)))

			d.mode = ModeDual
			proxy.Set(fault)
			f := d.keep(certsName, content, true)
			require.True(t, f.CopyPending)
			require.True(t, bytes.Equal(content, d.read(f, true)))
			proxy.Set(nil)
			row := store.FileRow{FileKey: store.FileKey{Kind: store.CertsFile}, File: f}
			key := must(d.CopyToS3(t.Context(), row))(t)
			f.Object, f.Location = key, store.InS3
			require.True(t, bytes.Equal(content, d.read(f, true)), "S3 has caught up")
		})
	}
}

func TestDownloadsFromAFaultyS3(t *testing.T) {
	t.Parallel()
	content := randomBytes(300_000)
	for name, c := range map[string]struct {
		fault s3test.Fault
		whole bool
	}{
		"full":                {s3test.Refuse(http.StatusInsufficientStorage, "QuotaExceeded"), false},
		"busy":                {s3test.Refuse(http.StatusServiceUnavailable, "SlowDown"), false},
		"swallowed":           {s3test.Swallow, false},
		"wrong bytes":         {s3test.Edit(false, s3test.Garble(200_000)), false},
		"wrong end":           {s3test.Edit(false, s3test.Garble(299_999)), false},
		"cut once in a while": {s3test.Edit(false, s3test.Cut(100_000)), true},
		"cut at once":         {s3test.Edit(false, s3test.Cut(0)), false},
		"stalled":             {s3test.Edit(false, s3test.Delay(t.Context(), time.Minute)), false},
		"slow":                {s3test.Edit(false, s3test.Delay(t.Context(), 5*time.Millisecond)), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, proxy := behindProxy(t, ModeS3)
			f := d.keep(sourceName, content, false)
			proxy.Set(c.fault)
			begun := time.Now()
			var got []byte
			o, err := d.Open(t.Context(), f)
			if err == nil {
				got, err = io.ReadAll(o)
				require.NoError(t, o.Close())
			}
			require.Less(t, time.Since(begun), inTime)
			if c.whole {
				require.NoError(t, err)
				require.True(t, bytes.Equal(content, got))
				return
			}
			require.Error(t, err)
			require.Less(t, len(got), len(content), "no client takes it for the whole")
			proxy.Set(nil)
			require.True(t, bytes.Equal(content, d.read(f, false)))
		})
	}
}

func TestUploadsDoNotQueueForAHangingS3(t *testing.T) {
	t.Parallel()
	d := openDepot(t, ModeS3, quick, func(c *S3Config) { c.StallTimeout, c.RestTime = time.Second, 10*time.Second })
	var uploads []*Upload
	for range 10 * atOnce {
		uploads = append(uploads, d.create(sourceName, []byte("x"), false))
	}
	d.server.Freeze()
	begun := time.Now()
	failed := make(chan error)
	for _, u := range uploads {
		go func() { _, err := commit(t.Context(), u, sourceName); failed <- err }()
	}
	for range uploads {
		require.Equal(t, store.Unavailable, store.CodeOf(<-failed))
	}
	require.Less(t, time.Since(begun), 6*time.Second, "one after the other would take 10 s")
}

func TestAnUploadThatBarelyMovesEnds(t *testing.T) {
	t.Parallel()
	d, proxy := behindProxy(t, ModeS3)
	proxy.Set(s3test.Edit(true, s3test.Delay(t.Context(), 100*time.Millisecond))) // 40 kB a second
	begun := time.Now()
	_, err := commit(t.Context(), d.create(sourceName, make([]byte, partSize), false), sourceName)
	require.Equal(t, store.Unavailable, store.CodeOf(err), "%v", err)
	require.Less(t, time.Since(begun), inTime)
}
