package install

import (
	"crypto/sha256"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"takt/cmd/internal/command"
	"takt/cmd/internal/settings"
	"takt/cmd/internal/takttest"
	"takt/store/storetest/needs"
)

// installTest skips a test that takes minutes and programs of its own.
func installTest(t *testing.T) {
	t.Helper()
	needs.Linux(t)
	needs.Asked(t, "TAKT_TEST_INSTALL", "make test-install")
}

// requireCommand checks that args are a command of takt, with flags that it has.
func requireCommand(t *testing.T, args []string) {
	t.Helper()
	cmd, rest, err := command.New(takttest.Environment()).Find(args)
	require.NoError(t, err)
	require.True(t, cmd.HasParent(), "%q", args)
	require.NoError(t, cmd.ParseFlags(rest))
	require.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()))
}

// clientVariables are what workers and client commands read.
var clientVariables = []string{"TAKT_URL", "TAKT_API_KEY", "TAKT_API_KEY_FILE", "TAKT_CA_FILE", "TAKT_ADMIN_KEY"}

// requireSettings checks that `takt serve` takes these variables.
func requireSettings(t *testing.T, variables map[string]string) settings.Config {
	t.Helper()
	src := settings.Sources{Lookup: func(name string) (string, bool) {
		value, ok := variables[name]
		return value, ok
	}}
	for name := range variables {
		src.Names = append(src.Names, name)
	}
	cfg, err := settings.Load(src)
	require.NoError(t, err)
	return cfg
}

// interpolated replaces ${NAME:-default} and ${NAME:?message} as compose does. values has
// those that the file .env gives.
func interpolated(t *testing.T, text string, values map[string]string) string {
	t.Helper()
	return regexp.MustCompile(`\$\{(\w+):([-?])([^}]*)\}`).ReplaceAllStringFunc(text, func(found string) string {
		m := regexp.MustCompile(`\$\{(\w+):([-?])([^}]*)\}`).FindStringSubmatch(found)
		if value, ok := values[m[1]]; ok {
			return value
		}
		require.Equal(t, "-", m[2], "%s is not in .env", m[1])
		return m[3]
	})
}

// secretsOfCompose are the names that docs/operate.md puts into deploy/.env.
func secretsOfCompose(t *testing.T) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(takttest.Operate())
	require.NoError(t, err)
	names := regexp.MustCompile(`(?m)^for name in (.*); do$`).FindStringSubmatch(string(raw))
	require.NotNil(t, names)
	require.Contains(t, string(raw), "TAKT_ENCRYPTION_KEY=$(head -c 32 /dev/urandom | base64)")
	values := map[string]string{"TAKT_ENCRYPTION_KEY": strings.Repeat("A", 42) + "E="}
	for name := range strings.FieldsSeq(names[1]) {
		values[name] = fmt.Sprintf("%x", sha256.Sum256([]byte(name)))[:32]
	}
	return values
}

func TestComposeFileFitsTheProgram(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(takttest.File("deploy", "compose.yaml"))
	require.NoError(t, err)
	var file struct {
		Services map[string]struct {
			Image       string
			Environment map[string]string
			Volumes     []string
			DependsOn   map[string]any `yaml:"depends_on"`
			Networks    map[string]struct {
				Address string `yaml:"ipv4_address"`
				Aliases []string
			}
		}
		Volumes map[string]any
	}
	require.NoError(t, yaml.Unmarshal([]byte(interpolated(t, string(raw), secretsOfCompose(t))), &file))
	var hosts, scraped []string
	for name, s := range file.Services {
		for other := range s.DependsOn {
			require.Contains(t, file.Services, other)
		}
		for _, mount := range s.Volumes {
			source, _, _ := strings.Cut(mount, ":")
			if strings.HasPrefix(source, "./") {
				_, err := os.Stat(takttest.File("deploy", source))
				require.NoError(t, err, name)
			} else {
				require.Contains(t, file.Volumes, source)
			}
		}
		switch s.Image {
		case "localhost/takt:latest":
			cfg := requireSettings(t, s.Environment)
			require.Len(t, cfg.TrustedProxies, 1)
			require.Equal(t, file.Services["caddy"].Networks["default"].Address+"/32", cfg.TrustedProxies[0].String())
			require.Equal(t, "s3", cfg.Storage)
			hosts = append(hosts, name+":3000")
		case "localhost/takt-worker:latest":
			for variable := range s.Environment {
				require.Contains(t, clientVariables, variable)
			}
			require.Equal(t, "http://"+file.Services["controller-1"].Networks["default"].Aliases[0]+":3000", s.Environment["TAKT_URL"])
		}
	}
	require.Len(t, hosts, 2)
	require.ElementsMatch(t, hosts, strings.Fields(file.Services["caddy"].Environment["TAKT_UPSTREAMS"]))

	var prometheus struct {
		ScrapeConfigs []struct {
			JobName       string                       `yaml:"job_name"`
			StaticConfigs []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	raw, err = os.ReadFile(takttest.File("deploy", "prometheus", "prometheus.yaml"))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(raw, &prometheus))
	for _, job := range prometheus.ScrapeConfigs {
		require.Equal(t, "takt", job.JobName, "by which the alerts find it")
		for _, static := range job.StaticConfigs {
			scraped = append(scraped, static.Targets...)
		}
	}
	require.ElementsMatch(t, hosts, scraped)
	provisioning, err := filepath.Glob(takttest.File("deploy", "grafana", "provisioning", "*", "*.yaml"))
	require.NoError(t, err)
	require.Len(t, provisioning, 2)
	for _, path := range provisioning {
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, yaml.Unmarshal(raw, &map[string]any{}), path)
	}
}

// The containers' files name commands, flags and settings that exist.
func TestContainerfilesFitTheProgram(t *testing.T) {
	t.Parallel()
	for name, commands := range map[string]int{"controller": 2, "worker": 1} {
		raw, err := os.ReadFile(takttest.File("deploy", "image", name+".Containerfile"))
		require.NoError(t, err)
		variables := map[string]string{"TAKT_DATABASE_URL": "postgres://db/takt", "TAKT_ENCRYPTION_KEY": strings.Repeat("A", 42) + "E="}
		for _, m := range regexp.MustCompile(`\b(TAKT_\w+)=(\S+)`).FindAllStringSubmatch(string(raw), -1) {
			variables[m[1]] = m[2]
		}
		cfg := requireSettings(t, variables)
		require.Empty(t, cfg.Unused)
		found := regexp.MustCompile(`\bCMD (\[.*\])`).FindAllStringSubmatch(string(raw), -1)
		require.Len(t, found, commands, name)
		for _, m := range found {
			var args []string
			require.NoError(t, json.Unmarshal([]byte(m[1]), &args))
			if args[0] == "takt" {
				args = args[1:]
			}
			requireCommand(t, args)
		}
	}
}

func TestLaunchdFileFitsTheProgram(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(takttest.File("deploy", "mac", "*.plist"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	raw, err := os.ReadFile(files[0])
	require.NoError(t, err)
	require.NoError(t, xml.Unmarshal(raw, &struct{}{}))
	// within returns the contents of elements called name in the value of key.
	within := func(key, name string) (contents []string) {
		t.Helper()
		value := regexp.MustCompile(`(?s)<key>` + key + `</key>\s*(.*?)\n\t<`).FindSubmatch(raw)
		require.NotNil(t, value, key)
		for _, m := range regexp.MustCompile(`<`+name+`>(.*?)</`+name+`>`).FindAllSubmatch(value[1], -1) {
			contents = append(contents, string(m[1]))
		}
		return contents
	}
	require.Equal(t, []string{strings.TrimSuffix(filepath.Base(files[0]), ".plist")}, within("Label", "string"))
	args, variables := within("ProgramArguments", "string"), within("EnvironmentVariables", "key")
	require.Equal(t, "/usr/local/bin/takt", args[0], "docs/mac.md installs it there")
	requireCommand(t, args[1:])
	for i, arg := range args {
		if arg == "--env" {
			require.Contains(t, variables, args[i+1])
		}
	}
	for _, name := range variables {
		require.True(t, !strings.HasPrefix(name, "TAKT_") || slices.Contains(clientVariables, name), name)
	}
	page, err := os.ReadFile(takttest.File("docs", "mac.md"))
	require.NoError(t, err)
	all, err := filepath.Glob(takttest.File("deploy", "mac", "*"))
	require.NoError(t, err)
	for _, path := range all {
		require.Contains(t, string(page), filepath.Base(path))
		if strings.HasSuffix(path, ".sh") {
			out, err := exec.CommandContext(t.Context(), "sh", "-n", path).CombinedOutput()
			require.NoError(t, err, "%s", out)
		}
	}
}
