package storage

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"

	"github.com/minio/minio-go/v7"
)

// Try stores a small object below the prefix, looks at it, reads, lists and removes it:
// all that takt has to be allowed to do. Its error names the step that failed.
func (s *S3) Try(ctx context.Context) (err error) {
	content := []byte(rand.Text())
	key := "doctor/" + rand.Text()
	if err := s.Put(ctx, key, bytes.NewReader(content), int64(len(content)), nil); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Remove(ctx, key)) }()
	if _, err := s.Size(ctx, key); err != nil {
		return err
	}
	o, err := s.open(ctx, key)
	if err != nil {
		return err
	}
	got, err := io.ReadAll(o)
	if err = errors.Join(err, o.Close()); err != nil {
		return err
	}
	if !bytes.Equal(got, content) {
		return fmt.Errorf("reading an object: %d other bytes came back", len(got))
	}
	for listed := range s.client.ListObjectsIter(ctx, s.cfg.Bucket, minio.ListObjectsOptions{Prefix: s.cfg.Prefix + key}) {
		return s.failure(ctx, "listing objects", listed.Err)
	}
	return errors.New("listing objects: one that was just stored is missing")
}
