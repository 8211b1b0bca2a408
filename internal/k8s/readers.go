package k8s

import (
	"context"
	"crypto/tls"
	"net/http"
	"time"

	"golang.org/x/time/rate"
	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/util/cert"
)

const (
	// tokenRate bounds the unknown tokens per second that the API server is asked about, because any client that
	// reaches the port of the metrics may send tokens.
	tokenRate = 5
	// tokenBurst bounds the unknown tokens at once.
	tokenBurst = 10
)

// tokenTime is the time for which an admitted token is not checked again. Metrics are needed most while the API server
// does not answer.
const tokenTime = 10 * time.Minute

// MetricsReaders returns a function that asks the API server who the bearer of a token is and whether that user may get
// /metrics. The function returns the HTTP status of the answer. A token that was admitted recently waits for no other.
func (c Clients) MetricsReaders() func(ctx context.Context, token string) int {
	admitted := cache.NewExpiring()
	limiter := rate.NewLimiter(tokenRate, tokenBurst)
	return func(ctx context.Context, token string) int {
		_, isAdmitted := admitted.Get(token)
		if isAdmitted {
			return http.StatusOK
		}
		if token == "" {
			return http.StatusUnauthorized
		}
		if limiter.Wait(ctx) != nil {
			return http.StatusServiceUnavailable
		}

		review, err := c.kube.tokenReviews.Create(
			ctx,
			&authentication.TokenReview{Spec: authentication.TokenReviewSpec{Token: token}},
			metav1.CreateOptions{},
		)
		if err != nil || !review.Status.Authenticated {
			return http.StatusUnauthorized
		}

		access, err := c.kube.accessReviews.Create(
			ctx,
			&authorization.SubjectAccessReview{Spec: authorization.SubjectAccessReviewSpec{
				User:                  review.Status.User.Username,
				UID:                   review.Status.User.UID,
				Groups:                review.Status.User.Groups,
				NonResourceAttributes: &authorization.NonResourceAttributes{Path: "/metrics", Verb: "get"},
			}},
			metav1.CreateOptions{},
		)
		if err != nil || !access.Status.Allowed {
			return http.StatusForbidden
		}

		admitted.Set(token, nil, tokenTime)
		return http.StatusOK
	}
}

// SelfSigned returns a new self-signed certificate.
func SelfSigned() (tls.Certificate, error) {
	options := cert.SelfSignedCertKeyOptions{
		Host:   "holdfast",
		MaxAge: 10 * 365 * 24 * time.Hour,
	}
	certificate, key, err := cert.GenerateSelfSignedCertKeyWithOptions(options)
	if err != nil {
		return tls.Certificate{}, err
	}

	return tls.X509KeyPair(certificate, key)
}
