package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

const (
	resultSize = 1 << 30
	crowd      = 50
	crowdSize  = 100 * mib
)

// holding takes one build through submit, register and poll: a new worker holds it.
func holding(ctx context.Context, c *controller) (client.Held, error) {
	sub, err := c.Client.Submit(ctx, client.Submit{Platform: store.IOS, Source: client.Bytes([]byte("source"))})
	if err != nil {
		return client.Held{}, err
	}
	reg, err := c.Client.Register(ctx, api.Register{Name: "uploader", Capabilities: []byte("{}")})
	if err != nil {
		return client.Held{}, err
	}
	poll, err := c.Client.Poll(ctx, client.Poll{Token: reg.AccessToken})
	if err != nil {
		return client.Held{}, err
	}
	if poll.Job == nil || poll.Job.ID != sub.ID {
		return client.Held{}, fmt.Errorf("submitted %s, the worker got %+v", sub.ID, poll.Job)
	}
	return client.Held{BuildID: sub.ID, WorkerID: reg.ID, Attempt: poll.Job.Attempt}, nil
}

// upload takes B1: a result of 1 GiB against cp and fsync on the same disk.
func (r *run) upload(ctx context.Context) error {
	c, err := r.start(ctx, "upload")
	if err != nil {
		return err
	}
	content, _, err := r.content("result.bin", resultSize)
	if err != nil {
		return err
	}
	grown := 0
	p, err := r.turns(ctx, "B1: 1 GiB copied, then uploaded", func(context.Context, int) (sample, error) {
		took, err := copyAndSync(filepath.Join(r.Dir, "result.bin"), filepath.Join(r.Dir, "copy.bin"))
		return work(resultSize/mib, took), err
	}, func(ctx context.Context, _ int) (sample, error) {
		took, growth, err := c.uploadOnce(ctx, content)
		grown = max(grown, growth)
		return work(resultSize/mib, took), err
	})
	if err != nil {
		return err
	}
	r.add(figure{
		name: "B1", what: "upload of a 1 GiB result against cp + fsync",
		measured: fmt.Sprintf("%.0f MiB/s, cp %.0f MiB/s", p.own.rate(), p.peer.rate()),
	}.atLeast(p.ratio(), .5, ""))
	r.add(memory("B1", "growth of resident memory during it, most of all rounds", grown, 64*mib))
	return nil
}

// uploadOnce takes one build through register, submit, poll and upload.
func (c *controller) uploadOnce(ctx context.Context, content client.Content) (took time.Duration, growth int, err error) {
	held, err := holding(ctx, c)
	if err != nil {
		return 0, 0, err
	}
	grown, err := c.growth()
	if err != nil {
		return 0, 0, err
	}
	begin := time.Now()
	_, err = c.Client.Upload(ctx, client.Upload{Held: held, Success: true, Result: &content})
	took = time.Since(begin)
	growth, gerr := grown()
	return took, growth, errors.Join(err, gerr)
}

func copyAndSync(from, to string) (took time.Duration, err error) {
	begin := time.Now()
	src, err := os.Open(from)
	if err != nil {
		return 0, fmt.Errorf("copying: %w", err)
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return 0, fmt.Errorf("copying: %w", err)
	}
	// Wrapped, so that the kernel really copies: a reflink would be no peer.
	_, err = io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, mib))
	err = errors.Join(err, dst.Sync(), dst.Close())
	took = time.Since(begin)
	return took, errors.Join(err, os.Remove(to))
}

// crowded takes B2: many large results at once.
func (r *run) crowded(ctx context.Context) error {
	c, err := r.start(ctx, "crowd")
	if err != nil {
		return err
	}
	content, digest, err := r.content("crowd.bin", crowdSize)
	if err != nil {
		return err
	}
	var builds [crowd]client.Held
	for i := range builds {
		if builds[i], err = holding(ctx, c); err != nil {
			return err
		}
	}
	r.say("B2: %d uploads of %d MiB at once", crowd, crowdSize/mib)
	growth, err := c.growth()
	if err != nil {
		return err
	}
	begin := time.Now()
	sending, stop := context.WithCancelCause(ctx)
	var sent [crowd]atomic.Int64
	var done atomic.Int64
	errs := make([]error, crowd)
	var wg sync.WaitGroup
	for i, held := range builds {
		own := furthest(content, &sent[i])
		wg.Go(func() {
			// Those that are refused for now come again when they are asked to.
			errs[i] = client.Retry{}.Do(sending, func(ctx context.Context) error {
				_, err := c.Client.Upload(ctx, client.Upload{Held: held, Success: true, Result: &own})
				return err
			})
			done.Add(1)
		})
	}
	err = c.Await(ctx, fmt.Sprintf("%d uploads to end", crowd), func() string {
		all := int64(0)
		for i := range sent {
			all += sent[i].Load()
		}
		return fmt.Sprintf("%d ended, %d MiB sent", done.Load(), all/mib)
	}, func(context.Context) (bool, error) { return done.Load() == crowd, nil })
	stop(err)
	wg.Wait()
	took := time.Since(begin)
	grown, gerr := growth()
	if err = errors.Join(append(errs, err, gerr)...); err != nil {
		return err
	}
	f := memory("B2", fmt.Sprintf("growth of resident memory during %d uploads of %d MiB at once", crowd, crowdSize/mib), grown, 128*mib)
	f.measured += fmt.Sprintf(", at %.0f MiB/s", crowd*crowdSize/mib/took.Seconds())
	f.target += ", nothing lost"
	r.add(f)
	return checkResults(ctx, c.db, crowd, crowdSize, digest)
}

// furthest is c, of which n says how much was read: what is sent again is no progress.
func furthest(c client.Content, n *atomic.Int64) client.Content {
	open := c.Open
	c.Open = func() (io.ReadCloser, error) {
		r, err := open()
		return &furthestBody{r, 0, n}, err
	}
	return c
}

type furthestBody struct {
	io.ReadCloser
	at int64
	n  *atomic.Int64
}

func (b *furthestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.at += int64(n)
	b.n.Store(max(b.n.Load(), b.at))
	return n, err
}

// checkResults looks for n completed builds, each with the result that was sent.
func checkResults(ctx context.Context, db database, n int, size int64, digest [32]byte) error {
	return db.expect(ctx, "completed builds with the whole result", fmt.Sprintf(
		`SELECT count(*) FROM builds b JOIN build_files f ON f.build = b.seq AND f.kind = 'result'
		WHERE b.state = 'completed' AND b.attempt = 1 AND f.size = %d AND f.sha256 = '\x%s'`, size, hex.EncodeToString(digest[:])), n)
}

// content makes a file of random bytes.
func (r *run) content(name string, size int64) (content client.Content, digest [32]byte, err error) {
	f, err := os.Create(filepath.Join(r.Dir, name))
	if err != nil {
		return content, digest, fmt.Errorf("making a file to upload: %w", err)
	}
	hash := sha256.New()
	w := bufio.NewWriterSize(f, mib)
	_, err = io.CopyN(io.MultiWriter(w, hash), rand.NewChaCha8([32]byte{}), size)
	if err = errors.Join(err, w.Flush(), f.Sync(), f.Close()); err != nil {
		return content, digest, fmt.Errorf("making a file to upload: %w", err)
	}
	content, err = client.File(f.Name())
	return content, [32]byte(hash.Sum(nil)), err
}

// downloads takes B3: a result of 1 GiB against a server that does nothing but
// sendfile, which is how nginx serves a file. The same client reads from both.
func (r *run) downloads(ctx context.Context) error {
	c, err := r.start(ctx, "download")
	if err != nil {
		return err
	}
	content, digest, err := r.content("download.bin", resultSize)
	if err != nil {
		return err
	}
	held, err := holding(ctx, c)
	if err != nil {
		return err
	}
	if _, err := c.Client.Upload(ctx, client.Upload{Held: held, Success: true, Result: &content}); err != nil {
		return err
	}
	kept := filepath.Join(c.DataDir, "files", "builds", held.BuildID, "result.ipa")
	// net/http hands the file to the kernel.
	peer, stop, err := process.Serve(ctx, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { http.ServeFile(w, req, kept) }))
	if err != nil {
		return err
	}
	defer stop()
	address, hash := c.URL+"/api/builds/"+held.BuildID+"/download", sha256.New()
	if _, err := fetch(ctx, address, c.APIKey, hash); err != nil {
		return err
	}
	if [32]byte(hash.Sum(nil)) != digest {
		return fmt.Errorf("%w: the download is not what was uploaded", errBroken)
	}
	fetching := func(address, key string) take {
		return func(ctx context.Context, _ int) (sample, error) { return fetch(ctx, address, key, io.Discard) }
	}
	p, err := r.turns(ctx, "B3: 1 GiB by sendfile, then by takt", fetching("http://"+peer, ""), fetching(address, c.APIKey))
	if err != nil {
		return err
	}
	r.add(figure{
		name: "B3", what: "download of 1 GiB against sendfile of the same file",
		measured: fmt.Sprintf("%.0f MiB/s, sendfile %.0f MiB/s", p.own.rate(), p.peer.rate()),
	}.atLeast(p.ratio(), .7, ""))
	return checkResults(ctx, c.db, 1, resultSize, digest)
}

// fetch reads all of address.
func fetch(ctx context.Context, address, key string, to io.Writer) (sample, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return sample{}, fmt.Errorf("downloading: %w", err)
	}
	if key != "" {
		req.Header.Set("X-API-Key", key)
	}
	transport := &http.Transport{DisableCompression: true, ReadBufferSize: 4096}
	defer transport.CloseIdleConnections()
	begin := time.Now()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return sample{}, fmt.Errorf("downloading: %w", err)
	}
	defer resp.Body.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{resp.Body}, make([]byte, mib))
	switch {
	case err != nil:
		return sample{}, fmt.Errorf("downloading: %w", err)
	case resp.StatusCode != http.StatusOK || n != resultSize:
		return sample{}, fmt.Errorf("downloading: status %d, %d bytes", resp.StatusCode, n)
	}
	return work(resultSize/mib, time.Since(begin)), nil
}
