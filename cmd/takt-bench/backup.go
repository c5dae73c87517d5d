package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"takt/cmd/internal/must"
	"takt/cmd/internal/process"
	"takt/http/client"
	"takt/store"
)

// backups prints how long backups of so many builds and files take, and their restore.
func (s *scale) backups(ctx context.Context) {
	s.row("command", "ended builds", "files", "took", "dump", "directory of backups")
	s.each(ctx, "backups", []int{s.builds / 10, s.builds}, func(n int) { s.backupsOf(ctx, n, s.files*n/s.builds) })
}

func (s *scale) backupsOf(ctx context.Context, builds, files int) {
	name := fmt.Sprint("backups-", builds)
	c := s.start(ctx, name)
	s.fill(ctx, c, builds)
	c.db.exec(ctx, "TRUNCATE build_files; CHECKPOINT;") // of files that do not exist
	dir := filepath.Join(s.Dir, name+"-copies")
	take := func(what, dataDir string, args ...string) {
		s.say("backup: %s", what)
		begun := time.Now()
		settings := []string{"TAKT_DATA_DIR=" + filepath.Join(s.Dir, dataDir), "TAKT_ENCRYPTION_KEY=" + process.ReadWord(filepath.Join(c.DataDir, "encryption-key"))}
		p := must.Get(s.Launch(strings.ReplaceAll(what, " ", "-"), settings, args...))
		<-p.Done()
		must.Do(p.Failure())
		took, dump, all := time.Since(begun), 0, 0
		must.Do(filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
			if err == nil && info.Mode().IsRegular() {
				all += int(info.Size())
				if strings.HasSuffix(path, ".sql.gz") { // in order: the newest is the last
					dump = int(info.Size())
				}
			}
			return err
		}))
		s.row(what, builds, fmt.Sprintf("%d of %d KiB", files, s.fileSize>>10), took.Round(100*time.Millisecond), megabytes(dump), megabytes(all))
	}
	take("rows alone", name, "backup", dir)
	s.submitFiles(ctx, c, files)
	take("the first with files", name, "backup", dir)
	s.submitFiles(ctx, c, files/10)
	take("a tenth more files", name, "backup", dir)
	take("verify", name, "backup", "verify", dir)
	take("restore", name+"-restored", "restore", dir)
}

// submitFiles submits n builds with a source of its own each.
func (s *scale) submitFiles(ctx context.Context, c *controller, n int) {
	s.say("backup: submitting %d files", n)
	must.Do(must.Spread(10, n, func(int) {
		source := make([]byte, s.fileSize)
		_, _ = rand.Read(source) // it does not fail
		must.Get(c.Client.Submit(ctx, client.Submit{Platform: store.IOS, Source: client.Bytes(source)}))
	}))
}
