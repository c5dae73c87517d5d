package needs

import (
	"archive/tar"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// PodmanEnv returns the environment of a podman that has its storage and settings below dir,
// a short name. It uses runc and this process's limits, because crun refuses cgroups of both
// versions at once, and raising limits takes more than root in many containers. Registries on
// this machine speak HTTP.
func PodmanEnv(dir string) (env []string, err error) {
	env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "XDG_RUNTIME_DIR=" + dir}
	for name, text := range map[string]string{
		"CONTAINERS_CONF":            "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=4096:4096\"]\n[engine]\nruntime = \"runc\"\n",
		"CONTAINERS_STORAGE_CONF":    fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = \"%[1]s/graph\"\nrunroot = \"%[1]s/run\"\n", dir),
		"CONTAINERS_REGISTRIES_CONF": "[[registry]]\nlocation = \"127.0.0.1\"\ninsecure = true\n",
	} {
		path := filepath.Join(dir, strings.ToLower(name))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return nil, err
		}
		env = append(env, name+"="+path)
	}
	return env, nil
}

// Busybox writes an archive of the smallest image, which has busybox and these files.
func Busybox(w io.Writer, files map[string][]byte) error {
	program, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	busybox, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	out := tar.NewWriter(w)
	add := func(h tar.Header, content []byte) {
		h.Size = int64(len(content))
		if err == nil {
			err = out.WriteHeader(&h)
		}
		if err == nil {
			_, err = out.Write(content)
		}
	}
	add(tar.Header{Name: "bin/busybox", Mode: 0o755}, busybox)
	for name, content := range files {
		add(tar.Header{Name: name, Mode: 0o755}, content)
	}
	for _, applet := range []string{"sh", "cat", "cp", "dd", "sleep"} {
		add(tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox"}, nil)
	}
	add(tar.Header{Name: "tmp", Typeflag: tar.TypeDir, Mode: 0o777}, nil)
	if err == nil {
		err = out.Close()
	}
	return err
}

// findPodman runs the smallest container.
func findPodman() (string, error) {
	dir, err := os.MkdirTemp("", "takt")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	env, err := PodmanEnv(dir)
	if err != nil {
		return "", err
	}
	podman := func(args ...string) error {
		cmd := exec.Command("podman", args...) // see try
		cmd.Env = env
		return try(cmd)
	}
	archive, err := os.Create(filepath.Join(dir, "image.tar"))
	if err != nil {
		return "", err
	}
	defer archive.Close()
	if err := Busybox(archive, nil); err != nil {
		return "", err
	}
	const image = "localhost/takt-needs:1"
	if err := podman("import", "--quiet", archive.Name(), image); err != nil {
		return "", err
	}
	err = podman("run", "--rm", "--network", "none", "--pull", "never", image, "/bin/busybox", "true")
	_ = podman("image", "rm", "--all", "--force") // removes mounts; the directory goes anyway
	return "", err
}
