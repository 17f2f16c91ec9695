package uplink

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
)

// Bounds of a connection. A path that drops packets silently is noticed
// after keepaliveTime + keepaliveTimeout, within 45 s.
const (
	keepaliveTime    = 20 * time.Second
	keepaliveTimeout = 20 * time.Second
	callTimeout      = 15 * time.Second // one unary call, connection included
	bufferBytes      = 4 << 10
)

// DialFunc opens the TCP connection to addr.
type DialFunc func(ctx context.Context, addr string) (net.Conn, error)

// dial prepares a connection; nothing is sent before the first call. way
// notes how the attempts end.
func dial(server string, tlsConf *tls.Config, dialer DialFunc, way *path) (*grpc.ClientConn, error) {
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return nil, fmt.Errorf("server address %q: want HOST:PORT: %w", server, err)
	}
	tlsConf.ServerName = host
	tlsConf.MinVersion = tls.VersionTLS13
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(handshaking{credentials.NewTLS(tlsConf), way}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: callTimeout}),
		grpc.WithReadBufferSize(bufferBytes),
		grpc.WithWriteBufferSize(bufferBytes),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
		grpc.WithContextDialer(way.dialing(dialer)),
	}
	conn, err := grpc.NewClient("passthrough:///"+server, opts...)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", server, err)
	}
	return conn, nil
}
