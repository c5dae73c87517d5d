package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"takt/cmd/internal/process"
	"takt/http/api"
	"takt/http/client"
	"takt/store"
)

const (
	crowd     = 50
	crowdSize = 100 * mib
)

// holding takes one build through submit, register and poll: a new worker holds it.
func holding(ctx context.Context, c *process.Controller) (client.Held, error) {
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

// crowded takes B2: many large results at once.
func (r *run) crowded(ctx context.Context) (err error) {
	c, err := r.Controller(ctx, "crowd")
	if err != nil {
		return err
	}
	defer ending(ctx, c, &err)
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
	before, _, err := c.Resident()
	if err != nil {
		return err
	}
	r.say("B2: %d uploads of %d MiB at once", crowd, crowdSize/mib)
	peak := watchPeak(c.Process)
	begin := time.Now()
	errs := make([]error, crowd)
	var wg sync.WaitGroup
	for i, held := range builds {
		wg.Go(func() {
			_, errs[i] = c.Client.Upload(ctx, client.Upload{Held: held, Success: true, Result: &content})
		})
	}
	wg.Wait()
	took := time.Since(begin)
	top, err := peak()
	if err = errors.Join(append(errs, err)...); err != nil {
		return err
	}
	grown := top - before
	r.add(figure{
		name: "B2", what: fmt.Sprintf("growth of resident memory during %d uploads of %d MiB at once", crowd, crowdSize/mib),
		measured: fmt.Sprintf("%d MiB, at %.0f MiB/s", grown/mib, crowd*crowdSize/mib/took.Seconds()),
		ratio:    fmt.Sprintf("%.2f of limit", float64(grown)/(128*mib)), target: "< 128 MiB, nothing lost", met: grown < 128*mib,
	})
	return checkResults(ctx, databaseOf(c), crowd, crowdSize, digest)
}

// checkResults looks for n completed builds, each with the result that was sent.
func checkResults(ctx context.Context, db database, n int, size int64, digest [32]byte) error {
	return db.expect(ctx, "completed builds with the whole result", fmt.Sprintf(
		`SELECT count(*) FROM builds b JOIN build_files f ON f.build = b.seq AND f.kind = 'result'
		WHERE b.state = 'completed' AND b.attempt = 1 AND f.size = %d AND f.sha256 = '\x%s'`, size, hex.EncodeToString(digest[:])), n)
}

// content makes a file of random bytes.
func (r *run) content(name string, size int64) (content client.Content, digest [32]byte, err error) {
	path := filepath.Join(r.Dir, name)
	if err := makeFile(path, size); err != nil {
		return content, digest, err
	}
	if content, err = client.File(path); err != nil {
		return content, digest, err
	}
	in, err := content.Open()
	if err != nil {
		return content, digest, err
	}
	defer in.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, in); err != nil {
		return content, digest, fmt.Errorf("reading %s: %w", name, err)
	}
	return content, [32]byte(hash.Sum(nil)), nil
}

// downloads takes B3: a result of 1 GiB against a server that does nothing but
// sendfile, which is how nginx serves a file. The same client reads from both.
func (r *run) downloads(ctx context.Context) (err error) {
	c, err := r.Controller(ctx, "download")
	if err != nil {
		return err
	}
	defer ending(ctx, c, &err)
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
	address := c.URL + "/api/builds/" + held.BuildID + "/download"
	if err := checkDownload(ctx, address, c.APIKey, digest); err != nil {
		return err
	}
	var ratios, rates, peers []float64
	for i := range r.rounds {
		r.say("B3: 1 GiB by sendfile, then by takt, round %d of %d", i+1, r.rounds)
		theirs, err := fetch(ctx, "http://"+peer, "", io.Discard)
		if err != nil {
			return err
		}
		ours, err := fetch(ctx, address, c.APIKey, io.Discard)
		if err != nil {
			return err
		}
		rates, peers = append(rates, resultSize/mib/ours.Seconds()), append(peers, resultSize/mib/theirs.Seconds())
		ratios = append(ratios, theirs.Seconds()/ours.Seconds())
	}
	r.add(figure{
		name: "B3", what: "download of 1 GiB against sendfile of the same file",
		measured: fmt.Sprintf("%.0f MiB/s, sendfile %.0f MiB/s", median(rates), median(peers)),
		ratio:    fmt.Sprintf("%.2f", median(ratios)), target: "≥ 0.7", met: median(ratios) >= .7,
	})
	return checkResults(ctx, databaseOf(c), 1, resultSize, digest)
}

// fetch reads all of address.
func fetch(ctx context.Context, address, key string, to io.Writer) (time.Duration, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, fmt.Errorf("downloading: %w", err)
	}
	if key != "" {
		req.Header.Set("X-API-Key", key)
	}
	transport := &http.Transport{DisableCompression: true, ReadBufferSize: 4096}
	defer transport.CloseIdleConnections()
	begin := time.Now()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return 0, fmt.Errorf("downloading: %w", err)
	}
	defer resp.Body.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{resp.Body}, make([]byte, mib))
	switch {
	case err != nil:
		return 0, fmt.Errorf("downloading: %w", err)
	case resp.StatusCode != http.StatusOK || n != resultSize:
		return 0, fmt.Errorf("downloading: status %d, %d bytes", resp.StatusCode, n)
	}
	return time.Since(begin), nil
}

func checkDownload(ctx context.Context, address, key string, want [32]byte) error {
	hash := sha256.New()
	if _, err := fetch(ctx, address, key, hash); err != nil {
		return err
	}
	if [32]byte(hash.Sum(nil)) != want {
		return errors.New("the download is not what was uploaded")
	}
	return nil
}
