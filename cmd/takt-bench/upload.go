package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"takt/cmd/internal/process"
	"takt/http/client"
)

const resultSize = 1 << 30

// upload takes B1: a result of 1 GiB against cp and fsync on the same disk.
func (r *run) upload(ctx context.Context) (err error) {
	c, err := r.Controller(ctx, "upload")
	if err != nil {
		return err
	}
	defer ending(ctx, c, &err)
	file := filepath.Join(r.Dir, "result.bin")
	if err := makeFile(file, resultSize); err != nil {
		return err
	}
	content, err := client.File(file)
	if err != nil {
		return err
	}
	var ratios, rates, copies []float64
	grown := 0
	for i := range r.rounds {
		r.say("B1: 1 GiB copied, then uploaded, round %d of %d", i+1, r.rounds)
		copied, err := copyAndSync(file, filepath.Join(r.Dir, "copy.bin"))
		if err != nil {
			return err
		}
		uploaded, growth, err := uploadOnce(ctx, c, content)
		if err != nil {
			return err
		}
		grown = max(grown, growth)
		rates, copies = append(rates, resultSize/mib/uploaded.Seconds()), append(copies, resultSize/mib/copied.Seconds())
		ratios = append(ratios, copied.Seconds()/uploaded.Seconds())
	}
	r.add(figure{
		name: "B1", what: "upload of a 1 GiB result against cp + fsync",
		measured: fmt.Sprintf("%.0f MiB/s, cp %.0f MiB/s", median(rates), median(copies)),
		ratio:    fmt.Sprintf("%.2f", median(ratios)), target: "≥ 0.5", met: median(ratios) >= .5,
	})
	r.add(figure{
		name: "B1", what: "growth of resident memory during it, most of all rounds", measured: fmt.Sprintf("%d MiB", grown/mib),
		ratio: fmt.Sprintf("%.2f of limit", float64(grown)/(64*mib)), target: "< 64 MiB", met: grown < 64*mib,
	})
	return nil
}

// uploadOnce takes one build through register, submit, poll and upload.
func uploadOnce(ctx context.Context, c *process.Controller, content client.Content) (took time.Duration, growth int, err error) {
	held, err := holding(ctx, c)
	if err != nil {
		return 0, 0, err
	}
	before, _, err := c.Resident()
	if err != nil {
		return 0, 0, err
	}
	peak := watchPeak(c.Process)
	begin := time.Now()
	_, err = c.Client.Upload(ctx, client.Upload{
		Held: held, Success: true, Result: &content,
	})
	took = time.Since(begin)
	top, perr := peak()
	return took, top - before, errors.Join(err, perr)
}

func makeFile(path string, size int64) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("making a file to upload: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, mib)
	if _, err := io.CopyN(w, rand.NewChaCha8([32]byte{}), size); err != nil {
		return fmt.Errorf("making a file to upload: %w", err)
	}
	return errors.Join(w.Flush(), f.Sync())
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
