package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"takt/store"
)

const (
	// partSize is what S3 gets at once of a larger file, in bytes.
	partSize = 16 << 20
	// atOnce is how many files are sent at once.
	atOnce = 4
)

// S3Config says which bucket files go to, and how.
type S3Config struct {
	// Endpoint is the server's URL, https or http. Required.
	Endpoint string
	// Bucket has to exist. Required.
	Bucket string
	// Region defaults to us-east-1.
	Region string
	// Prefix is put before every key; a slash follows it.
	Prefix string
	// PathStyle says where requests name the bucket: "true" in the path, "false"
	// in the host name, "auto" (the default) as the endpoint's vendor wants it.
	PathStyle string
	// AccessKey and SecretKey are required. They are never logged.
	AccessKey, SecretKey string

	// StallTimeout is how long a transfer may stand still, and how long an answer
	// may take. Defaults to 30 seconds.
	StallTimeout time.Duration
	// RestTime is how long S3 is left alone by who can do without it once it has
	// failed. Defaults to 15 seconds.
	RestTime time.Duration
}

func (c S3Config) withDefaults() S3Config {
	c.Region = cmp.Or(c.Region, "us-east-1")
	c.PathStyle = cmp.Or(c.PathStyle, "auto")
	c.StallTimeout = cmp.Or(c.StallTimeout, 30*time.Second)
	c.RestTime = cmp.Or(c.RestTime, 15*time.Second)
	if c.Prefix = strings.TrimSuffix(c.Prefix, "/"); c.Prefix != "" {
		c.Prefix += "/"
	}
	return c
}

// Validate names everything that is wrong with c.
func (c S3Config) Validate() error {
	var faults []error
	u, err := url.Parse(c.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		faults = append(faults, errors.New("s3-endpoint: must be the URL of a server, such as https://s3.example.com"))
	}
	if c.Bucket == "" || strings.ContainsAny(c.Bucket, "/ ") {
		faults = append(faults, errors.New("s3-bucket: must be the name of a bucket"))
	}
	if p := strings.TrimSuffix(c.Prefix, "/"); p != "" && (!filepath.IsLocal(p) || path.Clean(p) != p) {
		faults = append(faults, errors.New("s3-prefix: must be a plain path without a slash at its start"))
	}
	switch c.PathStyle {
	case "", "auto", "true", "false":
	default:
		faults = append(faults, errors.New("s3-path-style: must be auto, true or false"))
	}
	if c.AccessKey == "" {
		faults = append(faults, errors.New("s3-access-key: must be given"))
	}
	if c.SecretKey == "" {
		faults = append(faults, errors.New("s3-secret-key: must be given"))
	}
	return errors.Join(faults...)
}

// S3 keeps files in a bucket of any S3-compatible server. It knows keys and
// bytes only.
type S3 struct {
	cfg       S3Config
	client    minio.Core
	transport *http.Transport
	sends     chan struct{} // one for each upload under way
	state     atomic.Pointer[S3State]
}

// S3State is how S3 did when it was last asked for something.
type S3State struct {
	// At is zero if it never was.
	At time.Time
	// Err is nil if it answered.
	Err error
}

// OpenS3 returns the bucket of cfg. It asks the server for nothing: one that is
// away is no reason not to start.
func OpenS3(cfg S3Config) (*S3, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("opening S3 storage: %w", err)
	}
	cfg = cfg.withDefaults()
	u, err := url.Parse(cfg.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("opening S3 storage: %w", err)
	}
	transport, err := minio.DefaultTransport(u.Scheme == "https")
	if err != nil {
		return nil, fmt.Errorf("opening S3 storage: %w", err)
	}
	transport.ResponseHeaderTimeout = cfg.StallTimeout
	core, err := minio.NewCore(u.Host, &minio.Options{
		Creds:  credentials.NewStaticV4(cfg.AccessKey, cfg.SecretKey, ""),
		Secure: u.Scheme == "https", Region: cfg.Region, Transport: transport,
		BucketLookup: map[string]minio.BucketLookupType{
			"auto": minio.BucketLookupAuto, "true": minio.BucketLookupPath, "false": minio.BucketLookupDNS,
		}[cfg.PathStyle],
		MaxRetries: 3,
	})
	if err != nil {
		return nil, fmt.Errorf("opening S3 storage: %w", err)
	}
	core.SetAppInfo("takt", "1")
	s := &S3{cfg: cfg, client: *core, transport: transport, sends: make(chan struct{}, atOnce)}
	s.state.Store(&S3State{})
	return s, nil
}

// Close releases idle connections.
func (s *S3) Close() { s.transport.CloseIdleConnections() }

// State returns how S3 did when it was last asked for something.
func (s *S3) State() S3State { return *s.state.Load() }

// resting reports whether S3 has failed a moment ago.
func (s *S3) resting() bool {
	st := s.State()
	return st.Err != nil && time.Since(st.At) < s.cfg.RestTime
}

// Probe asks for the bucket.
func (s *S3) Probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.StallTimeout, errStalled)
	defer cancel()
	found, err := s.client.BucketExists(ctx, s.cfg.Bucket)
	if err == nil && !found {
		err = minio.ErrorResponse{Code: minio.NoSuchBucket, Message: "bucket " + s.cfg.Bucket + " does not exist"}
	}
	return s.failure(ctx, "asking for the bucket", err)
}

// Put stores size bytes of r under key. It returns once S3 has said that it has
// them. moved is called as bytes go; it may be nil.
func (s *S3) Put(ctx context.Context, key string, r io.ReaderAt, size int64, moved func(now time.Time)) error {
	full, err := s.full(key)
	if err != nil {
		return err
	}
	select {
	case s.sends <- struct{}{}:
		defer func() { <-s.sends }()
	case <-ctx.Done():
		return s.failure(ctx, "waiting to store an object", context.Cause(ctx))
	}
	ctx, w := watch(ctx, s.cfg.StallTimeout, moved)
	defer w.stop()
	// A ReaderAt is sent from where it lies: no part is held in memory.
	_, err = s.client.Client.PutObject(ctx, s.cfg.Bucket, full, io.NewSectionReader(r, 0, size), size, minio.PutObjectOptions{
		ContentType: "application/octet-stream", PartSize: partSize, NumThreads: 1, Progress: w,
		// Signing nothing piece by piece still makes a body, which some servers
		// leave in the connection, and stumble over.
		DisableContentSha256: size == 0,
	})
	return s.failure(ctx, "storing an object", err)
}

// takeBackTimeout is for the removal of an object that no row will name. What
// is not removed by then is left to the sweep.
const takeBackTimeout = 5 * time.Second

// putNew stores f, as the file called name, under a key that nothing ever had. If
// that fails, what was begun is removed.
func (s *S3) putNew(ctx context.Context, name string, f *File, moved func(now time.Time)) (key string, err error) {
	key = objectKey(name)
	if err := s.Put(ctx, key, f, f.Size, moved); err != nil {
		s.takeBack(ctx, key)
		return "", err
	}
	return key, nil
}

// takeBack removes an object that no row names. An S3 that failed a moment ago is
// not asked: the sweep finds the object.
func (s *S3) takeBack(ctx context.Context, key string) {
	if s.resting() {
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), takeBackTimeout, errStalled)
	defer cancel()
	_ = s.Remove(ctx, key) // likewise
}

// Size returns the size of what is stored under key. Error: NotFound.
func (s *S3) Size(ctx context.Context, key string) (int64, error) {
	full, err := s.full(key)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.StallTimeout, errStalled)
	defer cancel()
	info, err := s.client.StatObject(ctx, s.cfg.Bucket, full, minio.StatObjectOptions{})
	return info.Size, s.failure(ctx, "looking at an object", err)
}

// Remove removes what is stored under key; it is no error if nothing is.
func (s *S3) Remove(ctx context.Context, key string) error {
	full, err := s.full(key)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.StallTimeout, errStalled)
	defer cancel()
	err = s.client.RemoveObject(ctx, s.cfg.Bucket, full, minio.RemoveObjectOptions{})
	if err = s.failure(ctx, "removing an object", err); store.CodeOf(err) == store.NotFound {
		return nil
	}
	return err
}

// full is the key as S3 knows it. Keys that could mean something else to a file
// system behind S3 are refused.
func (s *S3) full(key string) (string, error) {
	if err := checkName(key); err != nil {
		return "", fmt.Errorf("object key: %w", err)
	}
	return s.cfg.Prefix + key, nil
}

// failure notes how S3 did and gives its error a code. nil stays nil.
func (s *S3) failure(ctx context.Context, doing string, err error) error {
	if err == nil {
		s.state.Store(&S3State{At: time.Now()})
		return nil
	}
	cause := context.Cause(ctx)
	if cause != nil && !errors.Is(cause, errStalled) {
		return fmt.Errorf("%s: %w", doing, cause) // the caller's doing, not S3's
	}
	response := minio.ToErrorResponse(err)
	if response.Code == minio.NoSuchKey || response.StatusCode == http.StatusNotFound && response.Code != minio.NoSuchBucket {
		s.state.Store(&S3State{At: time.Now()})
		return store.Wrap(store.NotFound, "File not found", fmt.Errorf("%s: %w", doing, err))
	}
	if response.StatusCode == http.StatusPreconditionFailed {
		s.state.Store(&S3State{At: time.Now()})
		return store.Wrap(store.Unavailable, "The file was replaced, try again", fmt.Errorf("%s: %w", doing, errReplaced))
	}
	if cause != nil {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	err = fmt.Errorf("%s: %w", doing, err)
	s.state.Store(&S3State{At: time.Now(), Err: err})
	e := store.Wrap(store.Unavailable, "The storage of files is not available, try again later", err)
	e.RetryAfter = s.cfg.RestTime
	return e
}
