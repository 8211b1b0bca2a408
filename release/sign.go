package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// keyless is the key of a workflow: cosign takes its identity from the workflow's OIDC token, and writes to the public
// transparency log.
const keyless = "keyless"

// provenance writes how the release was built, as the predicate of SLSA's provenance v1. The attestation adds its
// subject.
func (r release) provenance(context.Context) error {
	parameters := map[string]any{
		"version":       r.version,
		"architectures": r.architectures,
	}
	commit := map[string]any{
		"uri":    "git+https://" + module,
		"digest": map[string]string{"gitCommit": r.commit},
	}
	builder := map[string]string{"id": "https://" + module + "/blob/main/Makefile"}
	predicate := map[string]any{
		"buildDefinition": map[string]any{
			"buildType":            "https://" + module + "/blob/main/CONTRIBUTING.md#release",
			"externalParameters":   parameters,
			"resolvedDependencies": []any{commit},
		},
		"runDetails": map[string]any{"builder": builder},
	}

	text, err := json.MarshalIndent(predicate, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(r.provenanceFile(), append(text, '\n'), 0o644)
}

// provenanceFile returns the file of the provenance.
func (r release) provenanceFile() string {
	return filepath.Join(r.out, "provenance.json")
}

// bomFile returns the file of the bill of materials.
func (r release) bomFile() string {
	return filepath.Join(r.out, "sbom.cdx.json")
}

// readKey writes the public key beside the release. It fails early if the private key cannot be read.
func (r release) readKey(ctx context.Context) error {
	if r.key == "" || r.key == keyless {
		return nil
	}

	file := filepath.Join(r.out, "cosign.pub")
	_, err := output(ctx, r.cosign, "public-key", "--key", r.key, "--outfile", file)
	return err
}

// signSums signs the checksums, for users without a registry.
func (r release) signSums(ctx context.Context) error {
	if r.key == "" {
		return nil
	}

	sums := filepath.Join(r.out, "SHA256SUMS")
	return r.runCosign(ctx, "sign-blob", "--bundle", sums+".sigstore.json", sums)
}

// publish pushes the release, signs what it pushed, and prints how to verify and install it.
func (r release) publish(ctx context.Context) error {
	if r.push == "" {
		return nil
	}

	p, err := r.pushAll(ctx)
	if err != nil {
		return err
	}

	err = r.signPushed(ctx, p)
	if err != nil {
		return err
	}

	fmt.Print(r.instructions(p))
	return nil
}

// instructions returns the references of a release, and how to verify and install it.
func (r release) instructions(p pushed) string {
	pushed := strings.Join(append(p.images, p.chart), "\n\t")
	tags := []string{
		r.name(daemons),
		r.name(proxies),
		r.charts() + "/holdfast:" + r.version,
	}
	plain := ""
	if r.isPlainHTTP() {
		plain = " --plain-http"
	}

	return "Pushed and signed:\n\t" + pushed +
		"\nVerify:\n\t" + r.cosign + " verify " + r.identity() + " " + strings.Join(tags, " ") +
		"\nInstall:\n\thelm install holdfast oci://" + r.charts() + "/holdfast --version " + r.version + plain +
		" --namespace holdfast-system --create-namespace --wait\n"
}

// identity returns cosign's arguments that verify a signature.
func (r release) identity() string {
	if r.key != keyless {
		return "--key " + filepath.Join(r.out, "cosign.pub") + " --insecure-ignore-tlog"
	}

	workflow := "https://" + module + "/.github/workflows/release.yml@refs/tags/v"
	return "--certificate-oidc-issuer https://token.actions.githubusercontent.com" +
		" --certificate-identity-regexp '^" + regexp.QuoteMeta(workflow) + "'"
}

// signPushed signs the pushed references. It attests the provenance of each, and the bill of materials of images.
func (r release) signPushed(ctx context.Context, p pushed) error {
	for _, reference := range append(p.images, p.chart) {
		err := r.runCosign(ctx, "sign", reference)
		if err != nil {
			return err
		}

		err = r.attest(ctx, "slsaprovenance1", r.provenanceFile(), reference)
		if err != nil {
			return err
		}
	}

	for _, reference := range p.images {
		err := r.attest(ctx, "cyclonedx", r.bomFile(), reference)
		if err != nil {
			return err
		}
	}

	return nil
}

// attest attaches an attestation to a reference.
func (r release) attest(ctx context.Context, kind, predicate, reference string) error {
	return r.runCosign(ctx, "attest", "--type", kind, "--predicate", predicate, reference)
}

// With a key cosign uses no service: neither a transparency log, nor Sigstore's roots, which it would download.
var (
	noServices = filepath.Join("release", "cosign", "signing-config.json")
	noRoots    = filepath.Join("release", "cosign", "trusted-root.json")
)

// runCosign runs a command that signs.
func (r release) runCosign(ctx context.Context, command string, args ...string) error {
	argv := []string{r.cosign, command, "--yes"}
	if r.key != keyless {
		argv = append(argv, "--key", r.key, "--signing-config", noServices, "--trusted-root", noRoots)
	}

	_, err := output(ctx, append(argv, args...)...)
	return err
}
