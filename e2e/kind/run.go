package kind

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
)

// docker runs docker and returns what it printed.
func docker(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Stdin = stdin
	return output(cmd)
}

// local runs a program in Docker's network namespace, which this process has too.
func local(ctx context.Context, stdin string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	return output(cmd)
}

// output runs a command; its standard error becomes part of the error.
func output(cmd *exec.Cmd) (string, error) {
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if cmd.SysProcAttr == nil {
		// Ctrl-C must reach this process only: an interrupted tool leaves its work half done.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	}
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf(
			"run %s: %w: %s",
			strings.Join(cmd.Args[:min(3, len(cmd.Args))], " "),
			err,
			bytes.TrimSpace(stderr.Bytes()),
		)
	}
	return strings.TrimSpace(out.String()), nil
}
