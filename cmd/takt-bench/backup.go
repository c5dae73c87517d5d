package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"takt/cmd/internal/process"
	"takt/http/client"
	"takt/store"
)

// backups prints how long backups of so many builds and files take, and their restore.
func (s *scale) backups(ctx context.Context) error {
	s.row("command", "ended builds", "files", "took", "dump", "directory of backups")
	s.each(ctx, "backups", []int{s.builds / 10, s.builds}, func(n int) error { return s.backupsOf(ctx, n, s.files*n/s.builds) })
	return nil
}

func (s *scale) backupsOf(ctx context.Context, builds, files int) error {
	name := fmt.Sprint("backups-", builds)
	c, err := s.start(ctx, name)
	if err != nil {
		return err
	}
	if err := s.fill(ctx, c, builds); err != nil {
		return err
	}
	if err := c.db.exec(ctx, "TRUNCATE build_files; CHECKPOINT;"); err != nil { // of files that do not exist
		return err
	}
	dir := filepath.Join(s.Dir, name+"-copies")
	take := func(what, dataDir string, args ...string) error {
		s.say("backup: %s", what)
		begun := time.Now()
		settings := []string{"TAKT_DATA_DIR=" + filepath.Join(s.Dir, dataDir), "TAKT_ENCRYPTION_KEY=" + process.ReadWord(filepath.Join(c.DataDir, "encryption-key"))}
		p, err := s.Launch(strings.ReplaceAll(what, " ", "-"), settings, args...)
		if err != nil {
			return err
		}
		<-p.Done()
		if err := p.Failure(); err != nil {
			return err
		}
		took := time.Since(begun)
		dumps, err := filepath.Glob(filepath.Join(dir, "*.sql.gz"))
		if err != nil {
			return err
		}
		size, all := int64(0), int64(0)
		if info, err := os.Stat(dumps[len(dumps)-1]); err == nil {
			size = info.Size()
		}
		err = filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
			if err == nil && info.Mode().IsRegular() {
				all += info.Size()
			}
			return err
		})
		s.row(what, builds, fmt.Sprintf("%d of %d KiB", files, s.fileSize>>10), took.Round(100*time.Millisecond), fmt.Sprintf("%d MB", size/1_000_000), fmt.Sprintf("%d MB", all/1_000_000))
		return err
	}
	if err := take("rows alone", name, "backup", dir); err != nil {
		return err
	}
	if err := s.submitFiles(ctx, c, files); err != nil {
		return err
	}
	if err := take("the first with files", name, "backup", dir); err != nil {
		return err
	}
	if err := s.submitFiles(ctx, c, files/10); err != nil {
		return err
	}
	if err := take("a tenth more files", name, "backup", dir); err != nil {
		return err
	}
	if err := take("verify", name, "backup", "verify", dir); err != nil {
		return err
	}
	return take("restore", name+"-restored", "restore", dir)
}

// submitFiles submits n builds with a source of its own each.
func (s *scale) submitFiles(ctx context.Context, c *controller, n int) error {
	s.say("backup: submitting %d files", n)
	var submitting sync.WaitGroup
	errs := make([]error, 10)
	for k := range errs {
		submitting.Go(func() {
			source := make([]byte, s.fileSize)
			for i := k; i < n && errs[k] == nil; i += len(errs) {
				_, _ = rand.Read(source) // it does not fail
				_, errs[k] = c.Client.Submit(ctx, client.Submit{Platform: store.IOS, Source: client.Bytes(source)})
			}
		})
	}
	submitting.Wait()
	return errors.Join(errs...)
}
