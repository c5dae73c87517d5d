package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Params are the parameters of a build: variables by their names.
type Params map[string]string

// The limits of parameters and of the names of secrets.
const (
	MaxParams     = 64
	MaxParamName  = 128      // bytes
	MaxParamsSize = 32 << 10 // bytes of all names and values
	// MaxParamsText bounds the JSON object that has them, in which a character may be written
	// with six.
	MaxParamsText = 8 * MaxParamsSize
	MaxSecrets    = 64
)

// validParam matches the names of parameters and secrets.
var validParam = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)

// CheckVariable returns why no parameter or secret may be called name: the code is invalid or
// ReservedParam.
func CheckVariable(invalid Code, what, name string) error {
	switch {
	case len(name) > MaxParamName || !validParam.MatchString(name):
		return NewError(invalid, fmt.Sprintf("%s: %q is no name: want 1 to %d of A-Z, 0-9 and _, not beginning with a digit", what, Clip(name, MaxParamName), MaxParamName))
	case RefusedName(name):
		return NewError(ReservedParam, fmt.Sprintf("%s: no build may set %s, because it changes what programs run", what, name))
	}
	return nil
}

// ParseParams reads parameters: a JSON object of strings. Its error may be shown.
func ParseParams(text []byte) (Params, error) {
	p := Params{}
	err := parseObject("params", InvalidParam, text, func(name, value string) error {
		if _, twice := p[name]; twice {
			return NewError(InvalidParam, fmt.Sprintf("params: %q is there twice", name))
		}
		p[name] = value
		return nil
	})
	if err != nil {
		return nil, err
	}
	return p, p.Check()
}

// Check returns an error, which may be shown, if p breaks a rule.
func (p Params) Check() error {
	if len(p) > MaxParams {
		return NewError(TooManyParams, fmt.Sprintf("params: at most %d, got %d", MaxParams, len(p)))
	}
	size := 0
	for name, value := range p {
		if err := CheckVariable(InvalidParam, "params", name); err != nil {
			return err
		}
		if !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
			return NewError(InvalidParam, fmt.Sprintf("params: the value of %s must be UTF-8 text without NUL", name))
		}
		size += len(name) + len(value)
	}
	if size > MaxParamsSize {
		return ErrParamsTooLarge()
	}
	return nil
}

// ErrParamsTooLarge returns the answer to a submit with too many bytes of parameters.
func ErrParamsTooLarge() error {
	return NewError(ParamsTooLarge, fmt.Sprintf("params: names and values have at most %d bytes together", MaxParamsSize))
}

// Change returns p with changes: each replaces or adds a parameter, or with nil removes it. Its
// error may be shown.
func (p Params) Change(changes map[string]*string) (Params, error) {
	changed := maps.Clone(p)
	if changed == nil {
		changed = Params{}
	}
	if len(changes) > 2*MaxParams {
		return nil, NewError(TooManyParams, fmt.Sprintf("params: at most %d changes, got %d", 2*MaxParams, len(changes)))
	}
	for name, value := range changes {
		if value != nil {
			changed[name] = *value
			continue
		}
		if err := CheckVariable(InvalidParam, "params", name); err != nil { // the audit gets it, too
			return nil, err
		}
		delete(changed, name)
	}
	return changed, changed.Check()
}

// ParseSecrets reads which secrets a build asks for, and how each is given to it: a JSON object
// whose values are env or file. Its error may be shown.
func ParseSecrets(text []byte) (map[string]string, error) {
	secrets := map[string]string{}
	err := parseObject("secrets", InvalidSecret, text, func(name, as string) error {
		if err := CheckVariable(InvalidSecret, "secrets", name); err != nil {
			return err
		}
		if _, twice := secrets[name]; twice {
			return NewError(InvalidSecret, fmt.Sprintf("secrets: %q is there twice", name))
		}
		if as != SecretEnv && as != SecretFile {
			return NewError(InvalidSecret, fmt.Sprintf("secrets: %s must be %q or %q", name, SecretEnv, SecretFile))
		}
		if secrets[name] = as; len(secrets) > MaxSecrets {
			return NewError(TooManySecrets, fmt.Sprintf("secrets: at most %d", MaxSecrets))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return secrets, nil
}

// parseObject calls each for the members of a JSON object of strings, also for names that it has
// twice, which a map would hide.
func parseObject(field string, code Code, text []byte, each func(name, value string) error) error {
	invalid := NewError(code, field+": must be a JSON object of strings")
	if !utf8.Valid(text) {
		return NewError(code, field+": must be UTF-8 text")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return invalid
	}
	for d.More() {
		name, _ := d.Token()
		value, err := d.Token()
		n, isName := name.(string)
		v, isText := value.(string)
		if err != nil || !isName || !isText {
			return invalid
		}
		if err := each(n, v); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return invalid
	}
	if _, err := d.Token(); err != io.EOF {
		return invalid
	}
	return nil
}

// RefusedName reports whether no build may set a variable with this name, whatever the operator
// of a worker permits: it decides which programs run, what they load, or where takt's own
// variables come from. It is the only such list: of parameters, of secrets, and of a worker.
func RefusedName(name string) bool {
	for _, prefix := range [...]string{
		"LD_", "DYLD_", "_RLD", "BASH_", "TAKT_", // linkers, bash and takt itself
		"GIT_CONFIG", "GIT_TRACE", "OPENSSL_", "TS_NODE_", "PYTEST_", "BUNDLE_", "CARGO_BUILD_", "CARGO_TARGET_", "NIX_", "LUA_", "CORECLR_", "COR_", "KRB5_", "MALLOC_", "GLIBC_", "RUSTC_", "NPM_CONFIG_",
	} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	switch name {
	case // shells and terminals
		"PATH", "HOME", "USER", "LOGNAME", "SHELL", "ENV", "IFS", "TERM", "PWD", "OLDPWD", "TMPDIR", "TMP", "TEMP", "TMPPREFIX",
		"BASHOPTS", "SHELLOPTS", "PS0", "PS1", "PS2", "PS4", "PROMPT_COMMAND", "CDPATH", "FPATH", "GLOBIGNORE", "HISTFILE", "INPUTRC",
		"ZDOTDIR", "NULLCMD", "READNULLCMD", "KSH_ENV", "TERMINFO", "TERMINFO_DIRS", "TERMCAP", "TERMPATH",
		"EDITOR", "VISUAL", "PAGER", "MANPAGER", "BROWSER", "LESSOPEN", "LESSCLOSE", "LESS",
		// the C library and the dynamic linkers of other systems
		"GCONV_PATH", "LOCPATH", "LOCALDOMAIN", "RES_OPTIONS", "HOSTALIASES", "NLSPATH", "PATH_LOCALE", "SHLIB_PATH", "LIBPATH", "AUTHSTATE",
		// where programs find settings that run other programs
		"XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_DATA_HOME", "XDG_DATA_DIRS", "XDG_RUNTIME_DIR", "DOCKER_CONFIG", "DOCKER_HOST", "CONTAINER_HOST",
		// git and ssh
		"GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSH_VARIANT", "GIT_ASKPASS", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "GIT_PAGER", "GIT_EXTERNAL_DIFF",
		"GIT_PROXY_COMMAND", "GIT_EXEC_PATH", "GIT_TEMPLATE_DIR", "GIT_DIR", "GIT_COMMON_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE",
		"GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_ATTR_SOURCE", "GIT_ALLOW_PROTOCOL", "GIT_SSL_NO_VERIFY",
		"SSH_ASKPASS", "SSH_AUTH_SOCK", "SUDO_ASKPASS",
		// interpreters and build tools that load code
		"NODE_OPTIONS", "NODE_PATH", "NODE_REPL_EXTERNAL_MODULE", "ELECTRON_RUN_AS_NODE",
		"PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "PYTHONINSPECT", "PYTHONUSERBASE", "PYTHONWARNINGS", "PYTHONBREAKPOINT", "PYTHONPYCACHEPREFIX",
		"PYTHONEXECUTABLE", "PERL5LIB", "PERL5OPT", "PERL5DB", "PERLLIB", "PERLIO_DEBUG",
		"RUBYOPT", "RUBYLIB", "RUBYSHELL", "RUBYPATH", "GEM_HOME", "GEM_PATH",
		"JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "JAVA_OPTS", "JAVA_HOME", "CLASSPATH", "MAVEN_OPTS", "MAVEN_ARGS", "ANT_OPTS", "SBT_OPTS", "GRADLE_OPTS", "GRADLE_USER_HOME",
		"PHPRC", "PHP_INI_SCAN_DIR", "ERL_FLAGS", "ERL_AFLAGS", "ERL_ZFLAGS", "ERL_LIBS", "ELIXIR_ERL_OPTIONS",
		"R_PROFILE", "R_PROFILE_USER", "R_ENVIRON", "R_ENVIRON_USER", "R_LIBS", "JULIA_LOAD_PATH", "JULIA_DEPOT_PATH",
		"DOTNET_STARTUP_HOOKS", "DOTNET_ROOT", "RUSTC", "RUSTFLAGS", "GCC_EXEC_PREFIX", "COMPILER_PATH", "GTK_MODULES", "QT_PLUGIN_PATH", "CARGO_HOME", "GOFLAGS", "GOROOT", "GOTOOLCHAIN", "MAKEFILES", "MAKEFLAGS",
		"YARN_YARN_PATH", "COMPOSER_HOME":
		return true
	}
	return false
}
